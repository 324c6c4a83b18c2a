// A job's call as a command, a request and Python.
import { root, type Job } from "./api";

export function asCommand(job: Job): string {
  const args = (job.args ?? []).map((value) => shell(JSON.stringify(value)));
  const kwargs = Object.keys(job.kwargs ?? {}).length > 0 ? ["-k", shell(JSON.stringify(job.kwargs))] : [];
  return ["dray enqueue", shell(job.task), ...args, ...kwargs, "--queue", shell(job.queue)].join(" ");
}

export function asCurl(job: Job): string {
  const body = JSON.stringify({ task: job.task, args: job.args ?? [], kwargs: job.kwargs ?? {}, queue: job.queue, priority: job.priority });
  return `curl -X POST ${shell(`${location.origin}${root}/api/jobs`)} -H 'Authorization: Bearer KEY' -H 'Content-Type: application/json' -d ${shell(body)}`;
}

export function asPython(job: Job): string {
  const args = (job.args ?? []).map(python);
  const kwargs = Object.entries(job.kwargs ?? {}).map(([name, value]) => `${name}=${python(value)}`);
  return `app.using(queue=${python(job.queue)}).enqueue(${[python(job.task), ...args, ...kwargs].join(", ")})`;
}

const shell = (text: string): string => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

function python(value: unknown): string {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([name, one]) => `${python(name)}: ${python(one)}`).join(", ")}}`;
  return JSON.stringify(value);
}
