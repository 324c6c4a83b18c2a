// The URL is the state of every view: paths and parameters, read and changed here.
import { useEffect, useState } from "preact/hooks";
import type { AnchorHTMLAttributes, ComponentChildren } from "preact";
import { root } from "./api";

export interface Place {
  /** Parts of the path, each decoded: ["jobs", "default:0198…"]. */
  parts: string[];
  query: URLSearchParams;
}

const listeners = new Set<() => void>();

function here(): Place {
  const path = location.pathname.startsWith(root) ? location.pathname.slice(root.length) : location.pathname;
  const parts = path.split("/").filter(Boolean).map(decoded);
  return { parts, query: new URLSearchParams(location.search) };
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function navigate(to: string, options: { replace?: boolean } = {}): void {
  if (root + to === location.pathname + location.search) return;
  history[options.replace ? "replaceState" : "pushState"](null, "", root + to);
  for (const listener of listeners) listener();
  if (!options.replace) window.scrollTo(0, 0);
}

addEventListener("popstate", () => listeners.forEach((listener) => listener()));

export function usePlace(): Place {
  const [place, set] = useState(here);
  useEffect(() => {
    const listener = () => set(here());
    listeners.add(listener);
    return () => void listeners.delete(listener);
  }, []);
  return place;
}

/** The path of a view, with parameters that are not empty. */
export function pathOf(path: string, query: Record<string, string | number | null | undefined> = {}): string {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return path + (text ? `?${text}` : "");
}

export const jobPath = (id: string): string => `/jobs/${encodeURIComponent(id)}`;

/** Change parameters of the current view; an empty value removes one. */
export function setQuery(changes: Record<string, string | null>, options: { replace?: boolean } = { replace: true }): void {
  const { query } = here();
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") query.delete(name);
    else query.set(name, value);
  }
  const text = query.toString();
  navigate(location.pathname.slice(root.length) + (text ? `?${text}` : ""), options);
}

export function Link({ to, children, ...more }: { to: string; children: ComponentChildren } & Omit<AnchorHTMLAttributes<HTMLAnchorElement>, "href" | "role">) {
  const follow = (event: MouseEvent) => {
    if (event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    navigate(to);
  };
  return (
    <a {...more} href={root + to} onClick={follow}>
      {children}
    </a>
  );
}
