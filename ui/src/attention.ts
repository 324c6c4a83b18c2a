// What needs attention, each with its reason and one thing to do about it.
import type { Guarantees, Queue, Schedule, Worker } from "./api";
import { counted, duration, since } from "./format";
import { pathOf } from "./router";

export interface Finding {
  id: string;
  level: "bad" | "warn";
  title: string;
  reason: string;
  /** A place to go to, or an action of the API. */
  to?: string;
  button: string;
  act?: { path: "/api/queues/{queue}/resume"; queue: string } | { path: "/api/schedules/{name}/resume"; name: string };
}

const LATE = 60; // seconds that a ready job waits before its queue is called late
const SILENT = 30; // seconds without a heartbeat
const BLOCKED = 15_000; // milliseconds without a turn of an event loop

export interface Facts {
  queues: Queue[];
  workers: Worker[];
  schedules: Schedule[];
  guarantees: Guarantees | null;
}

export function findings({ queues, workers, schedules, guarantees }: Facts, now: number): Finding[] {
  return [
    ...noWorkers(queues, workers),
    ...queues.flatMap((queue) => ofQueue(queue, workers.length, now)),
    ...workers.flatMap((worker) => ofWorker(worker, now)),
    ...schedules.flatMap((schedule) => ofSchedule(schedule, now)),
    ...(guarantees === null ? [] : ofBroker(guarantees)),
  ].sort((a, b) => Number(b.level === "bad") - Number(a.level === "bad"));
}

function noWorkers(queues: Queue[], workers: Worker[]): Finding[] {
  const ready = queues.reduce((sum, queue) => sum + (queue.counts["ready"] ?? 0), 0);
  if (workers.some((worker) => worker.state === "running")) return [];
  const reason = ready > 0 ? `${counted(ready, "job")} ${ready === 1 ? "is" : "are"} ready and nothing runs ${ready === 1 ? "it" : "them"}: start one with dray worker.` : "Jobs would wait: start one with dray worker.";
  return [{ id: "no-workers", level: ready > 0 ? "bad" : "warn", title: "No worker is running", reason, to: "/workers", button: "See workers" }];
}

function ofQueue(queue: Queue, workers: number, now: number): Finding[] {
  const found: Finding[] = [];
  const ready = queue.counts["ready"] ?? 0;
  const dead = queue.counts["dead"] ?? 0;
  if (queue.paused) {
    const { by, reason, at } = queue.paused;
    const when = at ? ` ${duration(since(at, now))} ago` : "";
    found.push({
      id: `paused-${queue.name}`,
      level: "warn",
      title: `Queue ${queue.name} is paused`,
      reason: `${by ? `By ${by}` : "Paused"}${when}${reason ? `: ${reason}` : ""}. ${counted(ready, "job")} ready.`,
      button: "Resume",
      act: { path: "/api/queues/{queue}/resume", queue: queue.name },
    });
  } else if (ready > 0 && queue.workers === 0 && workers > 0) {
    found.push({ id: `unserved-${queue.name}`, level: "bad", title: `No worker serves queue ${queue.name}`, reason: `${counted(ready, "job")} ready${queue.dedicated ? "; the queue is dedicated: a worker must list it with -Q" : ""}.`, to: pathOf("/jobs", { queue: queue.name, state: "ready" }), button: "See jobs" });
  } else if (queue.oldest_ready_at && since(queue.oldest_ready_at, now) > LATE) {
    found.push({ id: `late-${queue.name}`, level: "warn", title: `Queue ${queue.name} is late`, reason: `Its oldest ready job has waited for ${duration(since(queue.oldest_ready_at, now))}; ${counted(ready, "job")} ready.`, to: pathOf("/jobs", { queue: queue.name, state: "ready" }), button: "See jobs" });
  }
  if (dead > 0) found.push({ id: `dead-${queue.name}`, level: "bad", title: `${counted(dead, "dead job")} in ${queue.name}`, reason: "They failed for good and stay until they are replayed or purged.", to: pathOf("/errors", { queue: queue.name }), button: "See errors" });
  return found;
}

function ofWorker(worker: Worker, now: number): Finding[] {
  const silent = since(worker.seen_at, now);
  if (silent > SILENT) return [{ id: `silent-${worker.id}`, level: "bad", title: `Worker ${worker.id} is silent`, reason: `Its last heartbeat came ${duration(silent)} ago; its jobs are taken over when its lease ends.`, to: "/workers", button: "See workers" }];
  const stuck = worker.executors.find((executor) => executor.beat_age > BLOCKED);
  if (stuck) return [{ id: `stuck-${worker.id}`, level: "warn", title: `Worker ${worker.id} is stuck`, reason: `The event loop of executor ${stuck.number} has not turned for ${duration(stuck.beat_age / 1000)}: a job blocks it.`, to: "/workers", button: "See workers" }];
  return [];
}

function ofSchedule(schedule: Schedule, now: number): Finding[] {
  const to = pathOf("/schedules", { name: schedule.name });
  if (schedule.paused) {
    const { by, reason } = schedule.paused;
    return [{ id: `schedule-${schedule.name}`, level: "warn", title: `Schedule ${schedule.name} is paused`, reason: `${by ? `By ${by}` : "Paused"}${reason ? `: ${reason}` : ""}.`, button: "Resume", act: { path: "/api/schedules/{name}/resume", name: schedule.name } }];
  }
  if (schedule.last_error) return [{ id: `schedule-${schedule.name}`, level: "bad", title: `Schedule ${schedule.name} fails`, reason: schedule.last_error, to, button: "See schedule" }];
  if (schedule.next_run && since(schedule.next_run, now) > LATE) return [{ id: `schedule-${schedule.name}`, level: "bad", title: `Schedule ${schedule.name} is late`, reason: `It was due ${duration(since(schedule.next_run, now))} ago: a worker with the scheduler on must run.`, to, button: "See schedule" }];
  return [];
}

function ofBroker(guarantees: Guarantees): Finding[] {
  const found: Finding[] = guarantees.warnings.map((text, n) => ({ id: `warning-${n}`, level: "warn", title: "A guarantee is weaker than it could be", reason: text, to: "/guarantees", button: "See guarantees" }));
  const repairs = Object.values(guarantees.repairs.counts).reduce((sum, n) => sum + n, 0);
  if (repairs > 0) found.push({ id: "repairs", level: "warn", title: `${counted(repairs, "repair")} of the store`, reason: "A sound store needs none: see what damaged it.", to: "/guarantees", button: "See guarantees" });
  return found;
}
