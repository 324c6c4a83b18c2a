// Numbers and times as text.
const whole = new Intl.NumberFormat("en");
const small = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

export const count = (n: number): string => whole.format(n);
export const counted = (n: number, one: string, many = `${one}s`): string => `${count(n)} ${n === 1 ? one : many}`;
export const decimal = (n: number): string => small.format(n);

/** 12431 as 12.4k: for places with little room. */
export function brief(n: number): string {
  if (n < 10_000) return count(n);
  return n < 999_950 ? `${small.format(n / 1000)}k` : `${small.format(n / 1_000_000)}M`;
}

/** Seconds as text: 3 ms, 1.2 s, 4 min, 2 h 5 min, 3 d. */
export function duration(seconds: number): string {
  const s = Math.abs(seconds);
  if (s < 0.0005) return "0 s";
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 10) return `${small.format(s)} s`;
  if (s < 60) return `${Math.floor(s)} s`;
  if (s < 3600) return two(s, 60, "min", "s");
  if (s < 86_400) return two(s, 3600, "h", "min", 60);
  return two(s, 86_400, "d", "h", 3600);
}

function two(seconds: number, unit: number, name: string, lower: string, part = 1): string {
  const high = Math.floor(seconds / unit);
  const low = Math.floor((seconds % unit) / part);
  return low > 0 && high < 10 ? `${high} ${name} ${low} ${lower}` : `${high} ${name}`;
}

export const since = (at: string, now: number): number => (now - Date.parse(at)) / 1000;

/** "4 min ago", "in 2 h", "now". */
export function ago(at: string, now: number): string {
  const seconds = since(at, now);
  if (Math.abs(seconds) < 1) return "now";
  return seconds > 0 ? `${duration(Math.floor(seconds) || 1)} ago` : `in ${duration(Math.ceil(-seconds))}`;
}

export const clock = (at: string | number): string => new Date(at).toLocaleTimeString("en-GB");
export const dateTime = (at: string | number): string => new Date(at).toLocaleString("sv-SE").replace("T", " ");

export const PRIORITIES: Record<number, string> = { 1: "high", 5: "normal", 9: "low" };
export const priority = (n: number): string => (PRIORITIES[n] ? `${PRIORITIES[n]} (${n})` : String(n));
