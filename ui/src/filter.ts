// The filter of the jobs page as text, as parameters of the URL, and its completion.
export const STATES = ["waiting", "scheduled", "ready", "running", "retrying", "succeeded", "dead", "cancelled"] as const;
export type StateName = (typeof STATES)[number];
export const FIELDS = ["state", "queue", "task", "tag", "priority", "group", "key", "parent", "since"] as const;
export type Field = (typeof FIELDS)[number];
export type Filter = Partial<Record<Field | "q", string>>;

const HELP: Record<Field, string> = {
  state: "where it stands",
  queue: "queue",
  task: "task",
  tag: "one of its tags",
  priority: "0 to 9, high, normal or low",
  group: "group, such as a tenant",
  key: "unique key",
  parent: "id of the job that enqueued it",
  since: "created since: 30m, 2d or a time",
};

export function fromQuery(query: URLSearchParams): Filter {
  const found: Filter = {};
  for (const name of [...FIELDS, "q"] as const) {
    const value = query.get(name);
    if (value) found[name] = value;
  }
  return found;
}

export function toText(filter: Filter): string {
  const parts = FIELDS.filter((name) => filter[name]).map((name) => `${name}:${quoted(filter[name] ?? "")}`);
  return [...parts, ...(filter.q ? [filter.q] : [])].join(" ");
}

const quoted = (value: string): string => (/\s/.test(value) ? `"${value}"` : value);

/** What a text means; the words without a field are searched for. */
export function fromText(text: string): Filter {
  const found: Filter = {};
  const words: string[] = [];
  for (const [, field, quotedValue, value, word] of text.matchAll(/(\w+):(?:"([^"]*)"|(\S*))|(\S+)/g)) {
    if (field !== undefined && (FIELDS as readonly string[]).includes(field)) {
      const given = quotedValue ?? value ?? "";
      if (given) found[field as Field] = given;
    } else words.push(word ?? `${field}:${quotedValue ?? value}`);
  }
  if (words.length > 0) found.q = words.join(" ");
  return found;
}

/** An id as dray makes them (`queue:` and 32 hexadecimal digits), pasted alone. */
export const looksLikeId = (text: string): boolean => /^[\w.-]{1,128}:[0-9a-f]{32}$/.test(text.trim());

export interface Suggestion {
  /** The whole text once it is chosen. */
  text: string;
  label: string;
  hint: string;
}

export interface Known {
  queues: string[];
  tasks: string[];
}

export function suggest(text: string, known: Known): Suggestion[] {
  const start = text.search(/\S*$/);
  const word = text.slice(start);
  const before = text.slice(0, start);
  const colon = word.indexOf(":");
  if (colon < 0) {
    return FIELDS.filter((name) => name.startsWith(word) && !text.includes(`${name}:`)).map((name) => ({ text: `${before}${name}:`, label: `${name}:`, hint: HELP[name] }));
  }
  const field = word.slice(0, colon);
  const typed = word.slice(colon + 1).toLowerCase();
  return values(field, known)
    .filter((value) => value.toLowerCase().includes(typed) && value !== typed)
    .slice(0, 12)
    .map((value) => ({ text: `${before}${field}:${value} `, label: value, hint: field }));
}

function values(field: string, known: Known): string[] {
  if (field === "state") return [...STATES];
  if (field === "queue") return known.queues;
  if (field === "task") return known.tasks;
  if (field === "priority") return ["high", "normal", "low"];
  if (field === "since") return ["15m", "1h", "24h", "7d"];
  return [];
}

/** The state that a job has after an event. */
export const STATE_AFTER: Record<string, StateName> = {
  promoted: "ready",
  released: "ready",
  taken: "running",
  succeeded: "succeeded",
  retried: "retrying",
  died: "dead",
  cancelled: "cancelled",
  given_back: "ready",
  crashed: "ready",
  replayed: "ready",
};
