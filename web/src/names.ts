// The order of names, as people count: rank2 before rank10.

const collator = new Intl.Collator("en", { numeric: true });

export function byName(a: string, b: string): number {
  return collator.compare(a, b);
}
