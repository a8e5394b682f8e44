// What was asked for lately: what takes long to read is kept, what is large is dropped.

/** `read`, which keeps its last `most` answers. One that failed is read again. */
export function recent<Answer>(most: number, read: (key: number) => Promise<Answer>): (key: number) => Promise<Answer> {
  // A map keeps the order in which keys were set.
  const known = new Map<number, Promise<Answer>>();
  return (key) => {
    const found = known.get(key) ?? read(key);
    known.delete(key);
    known.set(key, found);
    for (const oldest of known.keys()) {
      if (known.size <= most) {
        break;
      }
      known.delete(oldest);
    }
    found.catch(() => {
      if (known.get(key) === found) {
        known.delete(key);
      }
    });
    return found;
  };
}
