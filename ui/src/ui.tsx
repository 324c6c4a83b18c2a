// The building blocks of pages.
import type { ButtonHTMLAttributes, ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, type Session } from "./api";
import { ago, dateTime } from "./format";
import { useNow } from "./hooks";

export const app: { session: Session | null } = { session: null };

/** The caller's key has the role; the server checks it again for every action. */
export const may = (role: string): boolean => app.session?.roles.includes(role) ?? false;

interface ButtonProps extends Omit<ButtonHTMLAttributes<HTMLButtonElement>, "class"> {
  kind?: "plain" | "main" | "danger" | "quiet";
  /** The role that the action needs. */
  needs?: string;
  children: ComponentChildren;
}

export function Button({ kind = "plain", needs, children, ...more }: ButtonProps) {
  const allowed = needs === undefined || may(needs);
  return (
    <button type="button" {...more} class={`button ${kind}`} disabled={Boolean(more.disabled) || !allowed} title={allowed ? more.title : `Your key has not the role ${needs}`}>
      {children}
    </button>
  );
}

export const State = ({ name, label = name }: { name: string; label?: string }) => <span class={`state ${name}`}>{label}</span>;

export function Panel({ title, actions, children, class: more = "" }: { title?: ComponentChildren; actions?: ComponentChildren; children: ComponentChildren; class?: string }) {
  return (
    <section class={`panel ${more}`}>
      {(title || actions) && (
        <header>
          <h2>{title}</h2>
          <div class="actions">{actions}</div>
        </header>
      )}
      {children}
    </section>
  );
}

export function Heading({ title, children }: { title: string; children?: ComponentChildren }) {
  useEffect(() => {
    document.title = `${title} · ${app.session?.app ?? "dray"}`;
  }, [title]);
  return (
    <div class="heading">
      <h1>{title}</h1>
      <div class="actions">{children}</div>
    </div>
  );
}

export const Empty = ({ title, children }: { title: string; children?: ComponentChildren }) => (
  <div class="empty">
    <strong>{title}</strong>
    {children && <p>{children}</p>}
  </div>
);

export function Failed({ error, retry }: { error: ApiError; retry?: () => void }) {
  return (
    <div class="failure" role="alert">
      <strong>{error.away ? "The server or its broker does not answer" : "This did not work"}</strong>
      <span>{error.message}</span>
      {retry && <Button onClick={retry}>Try again</Button>}
    </div>
  );
}

/** Data once it is there; before, what happens instead. Old data stays below an error. */
export function Shown<T>({ loaded, children }: { loaded: { data: T | null; error: ApiError | null; reload: () => void }; children: (data: T) => ComponentChildren }) {
  const { data, error, reload } = loaded;
  return (
    <>
      {error && <Failed error={error} retry={reload} />}
      {data !== null ? children(data) : !error && <div class="loading" role="status">Loading …</div>}
    </>
  );
}

/** A time as "4 min ago"; the date and time in its title. */
export function When({ at, none = "—" }: { at: string | null | undefined; none?: string }) {
  const now = useNow();
  if (!at) return <span class="muted">{none}</span>;
  return (
    <time dateTime={at} title={dateTime(at)}>
      {ago(at, now)}
    </time>
  );
}

export function Facts({ rows }: { rows: [string, ComponentChildren][] }) {
  return (
    <dl class="facts">
      {rows.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

export function Json({ value, label }: { value: unknown; label: string }) {
  const short = JSON.stringify(value) ?? "";
  return (
    <pre class="code" tabIndex={0} role="region" aria-label={label}>
      {short.length <= 80 ? short : JSON.stringify(value, null, 2)}
    </pre>
  );
}

export function Bar({ share, label, class: more = "" }: { share: number; label: string; class?: string }) {
  const width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return (
    <div class={`bar ${more}`} role="img" aria-label={label} title={label}>
      <div style={{ width }} />
    </div>
  );
}

export function Copy({ text, children = "Copy", kind = "quiet" }: { text: string; children?: ComponentChildren; kind?: "plain" | "quiet" }) {
  const copy = () => navigator.clipboard.writeText(text).then(
    () => toast("Copied"),
    () => toast("The browser does not allow copying here", "bad"),
  );
  return (
    <Button kind={kind} onClick={copy}>
      {children}
    </Button>
  );
}

/** A button with a list of actions below it. */
export function Menu({ label, name, children }: { label: ComponentChildren; name?: string; children: ComponentChildren }) {
  const at = useRef<HTMLDetailsElement>(null);
  useEffect(() => {
    const close = (event: Event) => {
      if (at.current?.open && !(event.type === "click" && at.current.contains(event.target as Node))) at.current.open = false;
    };
    const escape = (event: KeyboardEvent) => event.key === "Escape" && close(event);
    addEventListener("click", close);
    addEventListener("keydown", escape);
    return () => {
      removeEventListener("click", close);
      removeEventListener("keydown", escape);
    };
  }, []);
  return (
    <details class="menu" ref={at}>
      <summary class="button plain" aria-label={name}>{label}</summary>
      <div class="items" onClick={() => at.current && (at.current.open = false)}>
        {children}
      </div>
    </details>
  );
}

export function Dialog({ title, close, children, wide = false }: { title: string; close: () => void; children: ComponentChildren; wide?: boolean }) {
  const at = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    at.current?.showModal();
  }, []);
  return (
    <dialog ref={at} class={wide ? "wide" : ""} aria-labelledby="dialog-title" onClose={close} onCancel={close}>
      <h2 id="dialog-title">{title}</h2>
      {children}
    </dialog>
  );
}

/** Asks before something is done that cannot be undone. */
export function Confirm({ title, text, button, danger = true, act, close }: { title: string; text: ComponentChildren; button: string; danger?: boolean; act: () => Promise<unknown>; close: () => void }) {
  const { busy, error, run } = useAction();
  return (
    <Dialog title={title} close={close}>
      <div class="text">{text}</div>
      {error && <Failed error={error} />}
      <footer>
        <Button onClick={close}>Keep as it is</Button>
        <Button kind={danger ? "danger" : "main"} disabled={busy} onClick={() => void run(async () => (await act(), close()))}>
          {button}
        </Button>
      </footer>
    </Dialog>
  );
}

/** Runs an action once at a time; its error is shown by the caller. */
export function useAction(): { busy: boolean; error: ApiError | null; run: (act: () => Promise<unknown>) => Promise<void> } {
  const [state, set] = useState<{ busy: boolean; error: ApiError | null }>({ busy: false, error: null });
  const run = async (act: () => Promise<unknown>) => {
    set({ busy: true, error: null });
    try {
      await act();
      set({ busy: false, error: null });
    } catch (error) {
      set({ busy: false, error: error instanceof ApiError ? error : new ApiError(0, "failed", String(error)) });
    }
  };
  return { ...state, run };
}

/** Do something, and say how it went. */
export async function attempt(act: () => Promise<unknown>, done: string): Promise<boolean> {
  try {
    await act();
    toast(done);
    return true;
  } catch (error) {
    toast(error instanceof Error ? error.message : String(error), "bad");
    return false;
  }
}

interface Toast {
  id: number;
  text: string;
  kind: "good" | "bad";
}
let toasts: Toast[] = [];
let showToasts: ((toasts: Toast[]) => void) | null = null;
let toastNumber = 0;

export function toast(text: string, kind: "good" | "bad" = "good"): void {
  const one = { id: ++toastNumber, text, kind };
  toasts = [...toasts.slice(-2), one];
  showToasts?.(toasts);
  setTimeout(() => {
    toasts = toasts.filter((other) => other !== one);
    showToasts?.(toasts);
  }, kind === "bad" ? 8000 : 3500);
}

export function Toasts() {
  const [shown, set] = useState<Toast[]>([]);
  useEffect(() => {
    showToasts = set;
    return () => void (showToasts = null);
  }, []);
  return (
    <div class="toasts" role="status" aria-live="polite">
      {shown.map((one) => (
        <div key={one.id} class={one.kind}>
          {one.text}
        </div>
      ))}
    </div>
  );
}
