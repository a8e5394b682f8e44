import type { App } from "./app.ts";

export function mount(host: HTMLElement, app: App): void {
  host.append(String(app.memory().count));
}
