// Dead jobs as groups of the same error.
import type { Job } from "./api";

export interface Group {
  print: string;
  task: string;
  type: string;
  message: string;
  jobs: Job[];
  first: string;
  last: string;
  queues: string[];
}

/** The same for errors that differ only in numbers, ids, addresses and quoted texts. */
export function fingerprint(job: Job): string {
  const message = job.error?.message ?? job.reason ?? "";
  const plain = message
    .replace(/'[^']*'|"[^"]*"/g, "'…'")
    .replace(/\S+@\S+/g, "…@…")
    .replace(/\b[0-9a-f]{8,}\b/gi, "#")
    .replace(/\d+/g, "#");
  return `${job.task}\n${job.error?.type ?? ""}\n${plain}`;
}

export function group(jobs: Job[]): Group[] {
  const found = new Map<string, Group>();
  for (const job of jobs) {
    const print = fingerprint(job);
    const at = job.finished_at ?? job.updated_at;
    const one = found.get(print);
    if (one === undefined) {
      found.set(print, { print, task: job.task, type: job.error?.type ?? "", message: job.error?.message ?? job.reason ?? "", jobs: [job], first: at, last: at, queues: [job.queue] });
      continue;
    }
    one.jobs.push(job);
    if (at < one.first) one.first = at;
    if (at > one.last) one.last = at;
    if (!one.queues.includes(job.queue)) one.queues.push(job.queue);
  }
  return [...found.values()].sort((a, b) => b.jobs.length - a.jobs.length || b.last.localeCompare(a.last));
}

/** How many of a group died in each of `steps` equal parts of the time between two moments. */
export function histogram(one: Group, from: number, to: number, steps = 30): number[] {
  const bars = new Array<number>(steps).fill(0);
  const span = Math.max(1, to - from);
  for (const job of one.jobs) {
    const at = Date.parse(job.finished_at ?? job.updated_at);
    const place = Math.min(steps - 1, Math.max(0, Math.floor(((at - from) / span) * steps)));
    bars[place] = (bars[place] ?? 0) + 1;
  }
  return bars;
}
