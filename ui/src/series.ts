// Rates, waits and run times of the last minutes, counted from the event feed.
import { live, type Change } from "./live";

const SPAN = 300; // seconds that charts show at most
const JOBS_MAX = 50_000;

interface Bucket {
  second: number;
  put: number;
  succeeded: number;
  failed: number;
  waits: number[];
  runs: number[];
}

const FAILED = new Set(["retried", "died", "crashed"]);
const READY = new Set(["put", "promoted", "released", "given_back", "crashed", "replayed", "retried"]);

class Series {
  private buckets = new Map<number, Bucket>();
  private since = new Map<string, number>(); // when a job became ready, or was taken
  total = 0;

  add(changes: Change[]): void {
    for (const change of changes) {
      const at = Date.parse(change.at);
      const bucket = this.bucket(Math.floor(at / 1000));
      for (const event of change.events) this.count(bucket, event.kind, event.id, at);
    }
  }

  private bucket(second: number): Bucket {
    let found = this.buckets.get(second);
    if (found === undefined) {
      found = { second, put: 0, succeeded: 0, failed: 0, waits: [], runs: [] };
      this.buckets.set(second, found);
      if (this.buckets.size > SPAN * 2) this.forget();
    }
    return found;
  }

  private forget(): void {
    const oldest = Math.floor(Date.now() / 1000) - SPAN;
    for (const second of this.buckets.keys()) if (second < oldest) this.buckets.delete(second);
  }

  private count(bucket: Bucket, kind: string, id: string, at: number): void {
    if (id === "") return;
    this.total++;
    if (kind === "put") bucket.put++;
    if (kind === "succeeded") bucket.succeeded++;
    if (FAILED.has(kind)) bucket.failed++;
    const before = this.since.get(id);
    if (kind === "taken" && before !== undefined) bucket.waits.push((at - before) / 1000);
    if ((kind === "succeeded" || FAILED.has(kind)) && before !== undefined) bucket.runs.push((at - before) / 1000);
    this.since.delete(id);
    if (kind === "taken" || READY.has(kind)) this.since.set(id, at);
    if (this.since.size > JOBS_MAX) this.since.delete(this.since.keys().next().value as string);
  }

  /** Columns for a chart: times, and the value of each step of `step` seconds. */
  columns(now: number, step: number, values: ((buckets: Bucket[]) => number | null)[]): (number | null)[][] {
    const end = Math.floor(now / 1000 / step) * step;
    const times: number[] = [];
    const columns: (number | null)[][] = values.map(() => []);
    for (let from = this.start(end, step); from < end; from += step) {
      const some: Bucket[] = [];
      for (let second = from; second < from + step; second++) {
        const bucket = this.buckets.get(second);
        if (bucket) some.push(bucket);
      }
      times.push(from + step);
      values.forEach((value, n) => columns[n]?.push(value(some)));
    }
    return [times, ...columns];
  }

  /** Where a chart begins: with the first event, but it shows a minute at least and `SPAN` at most. */
  private start(end: number, step: number): number {
    const first = Math.floor(Math.min(end, ...this.buckets.keys()) / step) * step;
    return Math.min(end - 60, Math.max(end - SPAN, first));
  }

  /** How many within the last seconds. */
  recent(now: number, seconds: number, value: (bucket: Bucket) => number): number {
    let sum = 0;
    const end = Math.floor(now / 1000);
    for (let second = end - seconds; second < end; second++) {
      const bucket = this.buckets.get(second);
      if (bucket) sum += value(bucket);
    }
    return sum;
  }
}

export const series = new Series();
live.onChange((changes) => series.add(changes));

export const sum = (name: "put" | "succeeded" | "failed", step: number) => (some: Bucket[]) => some.reduce((total, one) => total + one[name], 0) / step;

export const percentile = (name: "waits" | "runs", share: number) => (some: Bucket[]) => {
  const values = some.flatMap((one) => one[name]).sort((a, b) => a - b);
  return values.length === 0 ? null : (values[Math.min(values.length - 1, Math.floor(values.length * share))] ?? null);
};
