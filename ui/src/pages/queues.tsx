// Queues: how they stand, pausing, limits, purging.
import { useState } from "preact/hooks";
import { call, type Queue } from "../api";
import { brief, count, counted, duration, since } from "../format";
import { useLoad, useNow } from "../hooks";
import { Link, pathOf, setQuery, type Place } from "../router";
import { attempt, Button, Confirm, Dialog, Empty, Failed, Heading, Menu, Panel, Shown, State, toast, useAction, When } from "../ui";

const COLUMNS = ["ready", "running", "scheduled", "retrying", "waiting", "succeeded", "dead"];
type Open = { kind: "pause" | "limit" | "purge"; queue: Queue } | null;

export default function Queues({ place }: { place: Place }) {
  const loaded = useLoad("queues", (signal) => call("get", "/api/queues", { signal }));
  const now = useNow();
  const [open, setOpen] = useState<Open>(null);
  const sought = place.query.get("q") ?? "";
  const close = () => setOpen(null);
  const resume = async (queue: Queue, task?: string) => {
    await attempt(() => call("post", "/api/queues/{queue}/resume", { path: { queue: queue.name }, body: task ? { task } : {} }), `${queue.name}${task ? `, ${task}` : ""}: resumed`);
    loaded.reload();
  };
  return (
    <>
      <Heading title="Queues">
        <input class="search" type="search" placeholder="Find a queue" aria-label="Find a queue" value={sought} onInput={(event) => setQuery({ q: event.currentTarget.value })} />
      </Heading>
      <Shown loaded={loaded}>
        {({ queues }) => {
          const shown = queues.filter((queue) => queue.name.includes(sought));
          return (
            <Panel class="flush">
              {shown.length === 0 && <Empty title={sought ? "No queue fits" : "There are no queues yet"}>A queue appears with its first job.</Empty>}
              {shown.length > 0 && (
                <div class="scroll">
                  <table>
                    <thead>
                      <tr>
                        <th scope="col">Queue</th>
                        {COLUMNS.map((name) => <th key={name} scope="col" class="number">{name[0]?.toUpperCase()}{name.slice(1)}</th>)}
                        <th scope="col" class="number">Oldest</th>
                        <th scope="col">Limits</th>
                        <th scope="col">Workers</th>
                        <th scope="col"><span class="hidden">Actions</span></th>
                      </tr>
                    </thead>
                    <tbody>
                      {shown.slice(0, 500).map((queue) => (
                        <tr key={queue.name}>
                          <th scope="row"><Link to={pathOf("/jobs", { queue: queue.name })}>{queue.name}</Link>{queue.dedicated && <small class="muted"> dedicated</small>}<Pauses queue={queue} resume={(task) => void resume(queue, task)} /></th>
                          {COLUMNS.map((name) => <td key={name} class="number">{(queue.counts[name] ?? 0) === 0 ? <span class="muted">0</span> : <Link to={pathOf("/jobs", { queue: queue.name, state: name })}>{brief(queue.counts[name] ?? 0)}</Link>}</td>)}
                          <td class="number">{queue.oldest_ready_at ? duration(since(queue.oldest_ready_at, now)) : "—"}</td>
                          <td>{limitText(queue.limits) || <span class="muted">none</span>}{Object.entries(queue.task_limits).map(([task, limits]) => limitText(limits) && <div key={task} class="muted">{task}: {limitText(limits)}</div>)}</td>
                          <td>{queue.workers === 0 ? <span class="muted">none</span> : count(queue.workers)}</td>
                          <td class="buttons">
                            {queue.paused ? <Button needs="admin" kind="main" onClick={() => void resume(queue)} aria-label={`Resume ${queue.name}`}>Resume</Button> : <Button needs="admin" onClick={() => setOpen({ kind: "pause", queue })} aria-label={`Pause ${queue.name}`}>Pause</Button>}
                            <Menu label="⋯" name={`More for ${queue.name}`}>
                              <Button kind="quiet" needs="admin" onClick={() => setOpen({ kind: "limit", queue })}>Limits</Button>
                              <Button kind="quiet" needs="admin" onClick={() => setOpen({ kind: "purge", queue })}>Purge</Button>
                            </Menu>
                          </td>
                        </tr>
                      ))}
                    </tbody>
                  </table>
                </div>
              )}
              {shown.length > 500 && <p class="muted lead">The first 500 of {count(shown.length)}: find others by name.</p>}
            </Panel>
          );
        }}
      </Shown>
      {open?.kind === "pause" && <Pause queue={open.queue} close={close} done={loaded.reload} />}
      {open?.kind === "limit" && <Limits queue={open.queue} close={close} done={loaded.reload} />}
      {open?.kind === "purge" && <Purge queue={open.queue} close={close} done={loaded.reload} />}
    </>
  );
}

function Pauses({ queue, resume }: { queue: Queue; resume: (task?: string) => void }) {
  return (
    <>
      {queue.paused && <div class="paused"><State name="paused" /> <small>{queue.paused.by && `by ${queue.paused.by} `}<When at={queue.paused.at} />{queue.paused.reason && `: ${queue.paused.reason}`}</small></div>}
      {Object.entries(queue.paused_tasks).map(([task, pause]) => <div key={task} class="paused"><State name="paused" /> <small>{task}{pause.reason && `: ${pause.reason}`}</small> <Button kind="quiet" needs="admin" onClick={() => resume(task)}>Resume {task}</Button></div>)}
    </>
  );
}

const NAMES: Record<string, string> = { rate: "rate", enqueue_rate: "enqueue rate", max_running: "running", max_ready: "ready", group_running: "running per group", overflow: "overflow" };

const limitText = (limits: Record<string, unknown>): string => Object.entries(limits).filter(([name, value]) => value !== null && value !== undefined && name in NAMES).map(([name, value]) => `${NAMES[name]} ${String(value)}`).join(", ");

function Pause({ queue, close, done }: { queue: Queue; close: () => void; done: () => void }) {
  const [reason, setReason] = useState("");
  const { busy, error, run } = useAction();
  const act = (event: Event) => {
    event.preventDefault();
    void run(async () => {
      await call("post", "/api/queues/{queue}/pause", { path: { queue: queue.name }, body: { reason } });
      toast(`${queue.name} is paused`);
      close();
      done();
    });
  };
  return (
    <Dialog title={`Pause queue ${queue.name}?`} close={close}>
      <form onSubmit={act}>
        <p>Running jobs finish, new ones are accepted; nothing starts until it is resumed.</p>
        <label class="field">Reason, shown to others <input value={reason} maxLength={1000} onInput={(event) => setReason(event.currentTarget.value)} /></label>
        {error && <Failed error={error} />}
        <footer><Button onClick={close}>Close</Button><Button kind="main" type="submit" disabled={busy}>Pause it</Button></footer>
      </form>
    </Dialog>
  );
}

const LIMITS: [string, string, string][] = [
  ["rate", "Starts at most", "100/m"],
  ["max_running", "Running at most", "10"],
  ["group_running", "Running per group at most", "2"],
  ["max_ready", "Ready at most", "10000"],
  ["enqueue_rate", "Accepts at most", "1000/s"],
];

function Limits({ queue, close, done }: { queue: Queue; close: () => void; done: () => void }) {
  const before = Object.fromEntries(LIMITS.map(([name]) => [name, queue.limits[name] === null || queue.limits[name] === undefined ? "" : String(queue.limits[name])]));
  const [given, setGiven] = useState<Record<string, string>>(before);
  const { busy, error, run } = useAction();
  const act = (event: Event) => {
    event.preventDefault();
    const changed = Object.entries(given).filter(([name, value]) => value !== before[name]);
    const body = Object.fromEntries(changed.map(([name, value]) => [name, value === "" ? null : name.endsWith("rate") ? value : Number(value)]));
    void run(async () => {
      await call("put", "/api/queues/{queue}/limits", { path: { queue: queue.name }, body });
      toast(`Limits of ${queue.name} are set`);
      close();
      done();
    });
  };
  return (
    <Dialog title={`Limits of ${queue.name}`} close={close}>
      <form onSubmit={act}>
        <p>For all workers at once; they win over what tasks declare. An empty field takes a limit back.</p>
        {LIMITS.map(([name, text, example]) => <label key={name} class="field">{text}<input value={given[name]} placeholder={example} onInput={(event) => setGiven({ ...given, [name]: event.currentTarget.value })} /></label>)}
        {error && <Failed error={error} />}
        <footer><Button onClick={close}>Close</Button><Button kind="main" type="submit" disabled={busy}>Set</Button></footer>
      </form>
    </Dialog>
  );
}

function Purge({ queue, close, done }: { queue: Queue; close: () => void; done: () => void }) {
  const plan = useLoad(`purge ${queue.name}`, (signal) => call("post", "/api/queues/{queue}/purge", { path: { queue: queue.name }, body: { dry_run: true }, signal }), null);
  if (!plan.data) return <Dialog title={`Purge ${queue.name}`} close={close}><Shown loaded={plan}>{() => null}</Shown></Dialog>;
  const n = plan.data.changed;
  return <Confirm title={`Purge queue ${queue.name}?`} text={`${counted(n, "job")} that ${n === 1 ? "waits" : "wait"} in it would be deleted for good; running ones are left alone.`} button={`Delete ${counted(n, "job")}`} close={close} act={() => call("post", "/api/queues/{queue}/purge", { path: { queue: queue.name }, body: {} }).then((made) => { toast(`${counted(made.changed, "job")} deleted`); done(); })} />;
}
