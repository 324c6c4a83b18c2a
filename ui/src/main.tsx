// The dashboard: its frame, its pages, and what works on all of them.
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { ApiError, call, type Session } from "./api";
import { looksLikeId } from "./filter";
import { asApiError, useKey, useLiveState, useModule } from "./hooks";
import { live } from "./live";
import { Login } from "./login";
import { Now } from "./pages/now";
import { Link, jobPath, navigate, usePlace, type Place } from "./router";
import { app, Button, Dialog, Empty, Failed, Toasts } from "./ui";
import "./series";
import "./styles.css";

const PAGES: Record<string, { title: string; key: string; icon: string; load: () => Promise<{ default: (props: { place: Place }) => preact.JSX.Element }> }> = {
  "": { title: "Now", key: "n", icon: "M3 12h4l3-8 4 16 3-8h4", load: async () => ({ default: Now }) },
  jobs: { title: "Jobs", key: "j", icon: "M4 6h16M4 12h16M4 18h16", load: () => import("./pages/jobs") },
  errors: { title: "Errors", key: "e", icon: "M12 8v5m0 3v.5M12 3l9 17H3z", load: () => import("./pages/errors") },
  flows: { title: "Flows", key: "f", icon: "M5 4v5a3 3 0 003 3h8a3 3 0 013 3v5M5 12v8", load: () => import("./pages/flows") },
  queues: { title: "Queues", key: "q", icon: "M4 5h16v4H4zM4 11h16v4H4zM4 17h10v3H4z", load: () => import("./pages/queues") },
  workers: { title: "Workers", key: "w", icon: "M4 4h16v6H4zM4 14h16v6H4zM8 7h.1M8 17h.1", load: () => import("./pages/workers") },
  schedules: { title: "Schedules", key: "s", icon: "M12 7v5l3 2m6-2a9 9 0 11-18 0 9 9 0 0118 0z", load: () => import("./pages/schedules") },
  guarantees: { title: "Guarantees", key: "u", icon: "M12 3l8 3v6c0 5-4 8-8 9-4-1-8-4-8-9V6z M9 12l2 2 4-4", load: () => import("./pages/guarantees") },
  keys: { title: "Keys", key: "k", icon: "M14 10a4 4 0 11-4-4 4 4 0 014 4zm-1 3l7 7m-3-3l-2 2", load: () => import("./pages/keys") },
};

const STATES: Record<string, string> = {
  connecting: "connecting …",
  live: "live",
  reconnecting: "reconnecting …",
  paused: "paused",
  polling: "every 5 s",
  stopped: "stopped",
};

type Theme = "system" | "light" | "dark";
const THEMES: Theme[] = ["system", "light", "dark"];

function storedTheme(): Theme {
  const found = localStorage.getItem("dray-theme") as Theme | null;
  return found && THEMES.includes(found) ? found : "system";
}

function applyTheme(theme: Theme): void {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  localStorage.setItem("dray-theme", theme);
}

function Frame() {
  const place = usePlace();
  const [session, setSession] = useState<Session | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const enter = () => {
    setError(null);
    call("get", "/api/session").then((found) => {
      app.session = found;
      setSession(found);
      live.start();
    }, (wrong: unknown) => setError(asApiError(wrong)));
  };
  useEffect(enter, []);
  useEffect(() => {
    if (error?.away) {
      const timer = setTimeout(enter, 3000);
      return () => clearTimeout(timer);
    }
  }, [error]);
  if (error?.status === 401) return <Login entered={enter} message={error.message} />;
  if (error) return <main class="alone"><Failed error={error} retry={enter} /></main>;
  if (session === null) return <main class="alone"><div class="loading" role="status">Loading …</div></main>;
  return <Page place={place} session={session} />;
}

function Page({ place, session }: { place: Place; session: Session }) {
  const [help, setHelp] = useState(false);
  useShortcuts(() => setHelp(true));
  usePastedId();
  const first = place.parts[0] ?? "";
  return (
    <div class="frame">
      <a class="skip" href="#main">Skip to content</a>
      <Sidebar current={first} session={session} help={() => setHelp(true)} />
      <main id="main" tabIndex={-1}>
        <Content place={place} first={first} />
      </main>
      {help && <Help close={() => setHelp(false)} />}
      <Toasts />
    </div>
  );
}

function Content({ place, first }: { place: Place; first: string }) {
  const page = PAGES[first];
  if (page === undefined || (place.parts.length > 1 && first !== "jobs" && first !== "flows")) {
    return <Empty title="There is no such page"><Link to="/">Go to Now</Link></Empty>;
  }
  const name = place.parts.length > 1 ? `${first}/id` : first;
  const load = name === "jobs/id" ? () => import("./pages/job") : name === "flows/id" ? () => import("./pages/flow") : page.load;
  return <Lazy key={name} load={load} place={place} />;
}

function Lazy({ load, place }: { load: () => Promise<{ default: (props: { place: Place }) => preact.JSX.Element }>; place: Place }) {
  const module = useModule(load);
  if (module === null) return <div class="loading" role="status">Loading …</div>;
  const Found = module.default;
  return <Found place={place} />;
}

function Sidebar({ current, session, help }: { current: string; session: Session; help: () => void }) {
  const [theme, setTheme] = useState(storedTheme);
  const state = useLiveState();
  const turn = () => {
    const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length] ?? "system";
    applyTheme(next);
    setTheme(next);
  };
  const leave = () => void call("delete", "/api/session").finally(() => location.reload());
  const shown = Object.entries(PAGES).filter(([path]) => path !== "keys" || session.roles.includes("admin"));
  return (
    <aside class="sidebar">
      <Link to="/" class="brand">
        <svg viewBox="0 0 32 32" width="26" height="26" aria-hidden="true"><rect width="32" height="32" rx="7" class="logo" /><path d="M5 12h14v8H5zM20 14h4l3 3v3h-7z" fill="#fff" /><circle cx="10" cy="22" r="3" fill="#fff" class="wheel" /><circle cx="22" cy="22" r="3" fill="#fff" class="wheel" /></svg>
        <span><strong>dray</strong><small>{session.app}</small></span>
      </Link>
      <nav aria-label="Pages">
        {shown.map(([path, page]) => (
          <Link key={path} to={`/${path}`} aria-current={path === current ? "page" : undefined}>
            <svg viewBox="0 0 24 24" width="18" height="18" aria-hidden="true"><path d={page.icon} /></svg>
            <span>{page.title}</span>
          </Link>
        ))}
      </nav>
      <div class="foot">
        <span class={`connection ${state}`} role="status">{STATES[state]}</span>
        <Button kind="quiet" onClick={turn} title="Change the colours">{theme === "system" ? "System colours" : theme === "dark" ? "Dark" : "Light"}</Button>
        <Button kind="quiet" onClick={help}>Keys and help</Button>
        {!session.open && <Button kind="quiet" onClick={leave}>Leave ({session.name})</Button>}
        <small class="muted">{session.version} on {session.broker}</small>
      </div>
    </aside>
  );
}

const SHORTCUTS: [string, string][] = [
  ["/", "filter jobs"],
  ["g then a letter", "go: n now, j jobs, e errors, f flows, q queues, w workers, s schedules, u guarantees, k keys"],
  ["j, k", "next and previous row"],
  ["Enter", "open the row"],
  ["x", "select the row"],
  ["e", "run the job again, with other arguments if you like"],
  ["Esc", "close, or clear the selection"],
  ["?", "this help"],
];

function Help({ close }: { close: () => void }) {
  return (
    <Dialog title="Keys" close={close}>
      <dl class="facts">
        {SHORTCUTS.map(([keys, text]) => (
          <div key={keys}><dt><kbd>{keys}</kbd></dt><dd>{text}</dd></div>
        ))}
      </dl>
      <p class="muted">A job's id pasted anywhere opens the job. Everything here is in the command line and the HTTP API too: dray --help, /api/openapi.json.</p>
      <footer><Button kind="main" onClick={close}>Close</Button></footer>
    </Dialog>
  );
}

function useShortcuts(help: () => void): void {
  const [going, setGoing] = useState(false);
  useKey((event) => {
    if (going) {
      setGoing(false);
      const found = Object.entries(PAGES).find(([, page]) => page.key === event.key);
      if (found) {
        event.preventDefault();
        navigate(`/${found[0]}`);
      }
    } else if (event.key === "g") {
      setGoing(true);
      setTimeout(() => setGoing(false), 1500);
    } else if (event.key === "?") help();
    else if (event.key === "/") {
      event.preventDefault();
      const bar = document.querySelector<HTMLInputElement>(".filter input");
      if (bar) bar.focus();
      else navigate("/jobs");
    }
  });
}

/** An id that is pasted anywhere but into a field opens its job. */
function usePastedId(): void {
  useEffect(() => {
    const listener = (event: ClipboardEvent) => {
      if ((event.target as HTMLElement).closest("input, textarea")) return;
      const text = event.clipboardData?.getData("text").trim() ?? "";
      if (looksLikeId(text)) navigate(jobPath(text));
    };
    addEventListener("paste", listener);
    return () => removeEventListener("paste", listener);
  }, []);
}

applyTheme(storedTheme());
render(<Frame />, document.getElementById("app") as HTMLElement);
