// Live updates: the server's events, read with fetch. It stops while the tab is hidden, and comes back by itself.
import { root } from "./api";

export interface Change {
  queue: string;
  number: number;
  at: string;
  events: { kind: string; id: string; run: number }[];
}
export type LiveState = "connecting" | "live" | "reconnecting" | "paused" | "polling" | "stopped";

const FROM_START = "e30"; // the cursor {}: first what the feed still keeps, so that charts have a past
const PAUSES = [1000, 2000, 4000, 8000];
const POLL_EVERY = 5000;

class Live {
  state: LiveState = "connecting";
  private changed = new Set<(changes: Change[]) => void>();
  private told = new Set<() => void>();
  private cursor = FROM_START;
  private abort: AbortController | null = null;
  private timer = 0;
  private failures = 0;
  private running = false;

  start(): void {
    if (this.running) return;
    this.running = true;
    document.addEventListener("visibilitychange", () => this.visibility());
    this.visibility();
  }

  stop(): void {
    this.end("stopped");
  }

  /** Called with what happened; an empty list means: read anew. */
  onChange(listener: (changes: Change[]) => void): () => void {
    this.changed.add(listener);
    return () => void this.changed.delete(listener);
  }

  onState(listener: () => void): () => void {
    this.told.add(listener);
    return () => void this.told.delete(listener);
  }

  private visibility(): void {
    if (this.state === "stopped") return;
    if (document.hidden) this.end("paused");
    else if (this.abort === null) {
      if (this.state === "paused") this.emit([]);
      void this.follow();
    }
  }

  private end(state: LiveState): void {
    clearTimeout(this.timer);
    this.abort?.abort();
    this.abort = null;
    this.set(state);
  }

  private set(state: LiveState): void {
    if (this.state === state) return;
    this.state = state;
    for (const listener of this.told) listener();
  }

  private emit(changes: Change[]): void {
    for (const listener of this.changed) listener(changes);
  }

  private async follow(): Promise<void> {
    const abort = (this.abort = new AbortController());
    try {
      const reply = await fetch(`${root}/api/events`, { headers: { "last-event-id": this.cursor }, signal: abort.signal });
      if (reply.status === 403) return this.poll();
      if (reply.status === 401) return this.end("stopped");
      if (!reply.ok || reply.body === null) throw new Error(String(reply.status));
      if (this.failures > 0) this.emit([]);
      this.failures = 0;
      this.set("live");
      await this.read(reply.body.getReader());
    } catch {
      if (abort.signal.aborted) return;
    }
    this.set("reconnecting");
    const pause = PAUSES[Math.min(this.failures++, PAUSES.length - 1)];
    this.timer = window.setTimeout(() => void this.follow(), pause);
  }

  /** A key for certain tasks may not follow events: pages read anew instead. */
  private poll(): void {
    this.set("polling");
    this.timer = window.setTimeout(() => {
      this.emit([]);
      this.poll();
    }, POLL_EVERY);
  }

  private async read(reader: ReadableStreamDefaultReader<Uint8Array>): Promise<void> {
    const decoder = new TextDecoder();
    let text = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      text += decoder.decode(value, { stream: true });
      const messages = text.split("\n\n");
      text = messages.pop() ?? "";
      this.deliver(messages);
    }
  }

  private deliver(messages: string[]): void {
    const changes: Change[] = [];
    let gap = false;
    for (const message of messages) {
      const fields = new Map(message.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]));
      this.cursor = fields.get("id") ?? this.cursor;
      if (fields.get("event") === "change") changes.push(JSON.parse(fields.get("data") ?? "null"));
      gap ||= fields.get("event") === "gap";
    }
    if (changes.length > 0) this.emit(changes);
    if (gap) this.emit([]);
  }
}

export const live = new Live();
