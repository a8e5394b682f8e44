// What the reader has chosen, and who wants to know when it changes.

export interface State {
  /** Index into the page's subjects. */
  subject: number;
  /** What the timeline goes by. */
  axis: "events" | "time";
  /** The first and the last position of the timeline's view. */
  from: number;
  to: number;
  /** The chosen moment. */
  moment: number;
  /** The position that was chosen, where it is not that of the moment: by time, nothing may have happened for long. */
  at: number | null;
  /** How allocated bytes are divided. */
  by: "kind" | "line";
}

export type Listener = (now: Readonly<State>, before: Readonly<State>) => void;

export interface Store {
  readonly state: Readonly<State>;
  /** Changes what `patch` names, and calls all listeners if that is a change. */
  set(patch: Partial<State>): void;
  /** Calls `listener` at each change, until the function that this returns is called. */
  on(listener: Listener): () => void;
}

export function createStore(first: State): Store {
  let state: Readonly<State> = { ...first };
  const listeners = new Set<Listener>();
  // A listener may change the state: the others hear of one change after the other, in order.
  const waiting: [now: State, before: State][] = [];
  let telling = false;
  return {
    get state() {
      return state;
    },
    set(patch) {
      // Another moment is at its own position, unless another is named.
      const next = { ...state, ...(patch.moment === undefined ? {} : { at: null }), ...patch };
      if ((Object.keys(next) as (keyof State)[]).every((key) => next[key] === state[key])) {
        return;
      }
      waiting.push([next, state]);
      state = next;
      if (telling) {
        return;
      }
      telling = true;
      try {
        for (let change = waiting.shift(); change !== undefined; change = waiting.shift()) {
          for (const listener of [...listeners]) {
            listener(...change);
          }
        }
      } finally {
        telling = false;
      }
    },
    on(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}
