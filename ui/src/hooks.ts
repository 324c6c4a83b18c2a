// Hooks that pages share: loading with live updates, the clock, lazy parts.
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { ApiError } from "./api";
import { live, type Change, type LiveState } from "./live";

export interface Loaded<T> {
  data: T | null;
  error: ApiError | null;
  loading: boolean;
  reload: () => void;
}

const SETTLE = 700; // milliseconds between two reads that events cause

/** Load something; again when `key` changes, and on live changes that `fits` accepts. Old data stays meanwhile. */
export function useLoad<T>(key: string, load: (signal: AbortSignal) => Promise<T>, fits: ((changes: Change[]) => boolean) | null = () => true): Loaded<T> {
  const [state, set] = useState<{ key: string; data: T | null; error: ApiError | null; loading: boolean }>({ key, data: null, error: null, loading: true });
  const latest = useRef({ load, fits });
  latest.current = { load, fits };
  const [turn, setTurn] = useState(0);
  const reload = useCallback(() => setTurn((n) => n + 1), []);
  useEffect(() => {
    const abort = new AbortController();
    set((old) => (old.key === key ? { ...old, loading: true } : { key, data: null, error: null, loading: true }));
    latest.current.load(abort.signal).then(
      (data) => !abort.signal.aborted && set({ key, data, error: null, loading: false }),
      (error: unknown) => !abort.signal.aborted && set((old) => ({ ...old, key, error: asApiError(error), loading: false })),
    );
    return () => abort.abort();
  }, [key, turn]);
  useLiveReload(reload, (changes) => latest.current.fits?.(changes) ?? false);
  return state.key === key ? { ...state, reload } : { data: null, error: null, loading: true, reload };
}

function useLiveReload(reload: () => void, fits: (changes: Change[]) => boolean): void {
  useEffect(() => {
    let timer = 0;
    const stop = live.onChange((changes) => {
      if (timer !== 0 || document.hidden || !(changes.length === 0 || fits(changes))) return;
      timer = window.setTimeout(() => {
        timer = 0;
        reload();
      }, SETTLE);
    });
    return () => {
      stop();
      clearTimeout(timer);
    };
  }, []);
}

export function asApiError(error: unknown): ApiError {
  return error instanceof ApiError ? error : new ApiError(0, "failed", error instanceof Error ? error.message : String(error));
}

export function useLiveState(): LiveState {
  const [state, set] = useState(live.state);
  useEffect(() => {
    set(live.state); // it may have changed since the first drawing
    return live.onState(() => set(live.state));
  }, []);
  return state;
}

/** The time, renewed every second while the tab is shown. */
export function useNow(every = 1000): number {
  const [now, set] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || set(Date.now()), every);
    return () => clearInterval(timer);
  }, [every]);
  return now;
}

/** A part of the page that is loaded when it is shown. */
export function useModule<T>(load: () => Promise<T>): T | null {
  const [module, set] = useState<T | null>(null);
  useEffect(() => void load().then((found) => set(() => found)), []);
  return module;
}

export function useKey(handler: (event: KeyboardEvent) => void): void {
  const latest = useRef(handler);
  latest.current = handler;
  useEffect(() => {
    const listener = (event: KeyboardEvent) => {
      const at = event.target as HTMLElement;
      if (at.closest("input, textarea, select, dialog, [contenteditable]") || event.metaKey || event.ctrlKey || event.altKey) return;
      latest.current(event);
    };
    addEventListener("keydown", listener);
    return () => removeEventListener("keydown", listener);
  }, []);
}
