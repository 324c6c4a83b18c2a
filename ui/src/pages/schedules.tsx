// Schedules: their rule in words, their next run, pausing, triggering, making and deleting.
import { useState } from "preact/hooks";
import { call, type Schedule } from "../api";
import { count } from "../format";
import { useLoad } from "../hooks";
import { Link, jobPath, navigate, pathOf, setQuery, type Place } from "../router";
import { attempt, Button, Confirm, Dialog, Empty, Failed, Heading, Menu, Panel, Shown, State, toast, useAction, When } from "../ui";

type Open = { kind: "delete" | "pause" | "edit"; schedule: Schedule } | { kind: "make" } | null;

export default function Schedules({ place }: { place: Place }) {
  const loaded = useLoad("schedules", (signal) => call("get", "/api/schedules", { signal }));
  const [open, setOpen] = useState<Open>(null);
  const sought = place.query.get("name") ?? "";
  const close = () => setOpen(null);
  const trigger = (schedule: Schedule) => attempt(async () => {
    const made = await call("post", "/api/schedules/{name}/trigger", { path: { name: schedule.name } });
    navigate(jobPath(made.id));
  }, `${schedule.name}: one job is enqueued`);
  const resume = async (schedule: Schedule) => {
    await attempt(() => call("post", "/api/schedules/{name}/resume", { path: { name: schedule.name } }), `${schedule.name}: resumed`);
    loaded.reload();
  };
  return (
    <>
      <Heading title="Schedules">
        <input class="search" type="search" placeholder="Find a schedule" aria-label="Find a schedule" value={sought} onInput={(event) => setQuery({ name: event.currentTarget.value })} />
        <Button kind="main" needs="admin" onClick={() => setOpen({ kind: "make" })}>New schedule</Button>
      </Heading>
      <Shown loaded={loaded}>
        {({ schedules }) => {
          const shown = schedules.filter((one) => one.name.includes(sought) || one.task.includes(sought));
          return (
            <Panel class="flush">
              {shown.length === 0 && <Empty title={sought ? "No schedule fits" : "There are no schedules"}>Write @app.cron("0 3 * * *") or @app.every("30s") above a task, or make one here.</Empty>}
              {shown.length > 0 && (
                <div class="scroll">
                  <table>
                    <thead><tr><th scope="col">Schedule</th><th scope="col">When</th><th scope="col">Next run</th><th scope="col">Last run</th><th scope="col" class="number">Runs</th><th scope="col">State</th><th scope="col"><span class="hidden">Actions</span></th></tr></thead>
                    <tbody>
                      {shown.slice(0, 500).map((one) => (
                        <tr key={one.name}>
                          <th scope="row">{one.name}<div class="muted"><Link to={pathOf("/jobs", { task: one.task })}>{one.task}</Link> in {one.queue}{one.origin === "code" && ", from code"}</div></th>
                          <td>{one.description}<div class="muted"><code>{one.rule}</code>{one.catch_up !== "skip" && ` catch-up ${one.catch_up}`}</div></td>
                          <td><When at={one.next_run} /></td>
                          <td>{one.last_job ? <Link to={jobPath(one.last_job)}><When at={one.last_run} /></Link> : <When at={one.last_run} none="never" />}</td>
                          <td class="number">{count(one.run_count)}</td>
                          <td>{one.paused ? <><State name="paused" /><div class="muted">{one.paused.reason}</div></> : one.last_error ? <><State name="dead" label="fails" /><div class="muted">{one.last_error}</div></> : <State name="succeeded" label="active" />}</td>
                          <td class="buttons">
                            <Button needs="admin" onClick={() => void trigger(one)} aria-label={`Trigger ${one.name}`}>Trigger</Button>
                            <Menu label="⋯" name={`More for ${one.name}`}>
                              {one.paused ? <Button kind="quiet" needs="admin" onClick={() => void resume(one)}>Resume</Button> : <Button kind="quiet" needs="admin" onClick={() => setOpen({ kind: "pause", schedule: one })}>Pause</Button>}
                              {one.origin !== "code" && <Button kind="quiet" needs="admin" onClick={() => setOpen({ kind: "edit", schedule: one })}>Edit</Button>}
                              <Button kind="quiet" needs="admin" onClick={() => setOpen({ kind: "delete", schedule: one })}>Delete</Button>
                            </Menu>
                          </td>
                        </tr>
                      ))}
                    </tbody>
                  </table>
                </div>
              )}
            </Panel>
          );
        }}
      </Shown>
      {open?.kind === "make" && <Edit close={close} done={loaded.reload} />}
      {open?.kind === "edit" && <Edit before={open.schedule} close={close} done={loaded.reload} />}
      {open?.kind === "pause" && <Confirm title={`Pause ${open.schedule.name}?`} danger={false} text="It makes no jobs until it is resumed; ticks that pass meanwhile are gone." button="Pause it" close={close} act={() => call("post", "/api/schedules/{name}/pause", { path: { name: open.schedule.name }, body: {} }).then(loaded.reload)} />}
      {open?.kind === "delete" && <Confirm title={`Delete ${open.schedule.name}?`} text={open.schedule.origin === "code" ? "Code declares it: it comes back when a worker starts. Its jobs stay." : "Its jobs stay."} button="Delete it" close={close} act={() => call("delete", "/api/schedules/{name}", { path: { name: open.schedule.name } }).then(loaded.reload)} />}
    </>
  );
}

function Edit({ before, close, done }: { before?: Schedule; close: () => void; done: () => void }) {
  const tasks = useLoad("tasks", (signal) => call("get", "/api/tasks", { signal }), null);
  const [name, setName] = useState(before?.name ?? "");
  const [task, setTask] = useState(before?.task ?? "");
  const [kind, setKind] = useState<string>(before?.kind === "every" ? "every" : "cron");
  const [rule, setRule] = useState(before ? before.rule.replace(/^every /, "") : "0 3 * * *");
  const [tz, setTz] = useState(before?.tz ?? "");
  const [args, setArgs] = useState(JSON.stringify(before?.args ?? []));
  const [kwargs, setKwargs] = useState(JSON.stringify(before?.kwargs ?? {}));
  const { busy, error, run } = useAction();
  const act = (event: Event) => {
    event.preventDefault();
    void run(async () => {
      const when = kind === "cron" ? { cron: rule, ...(tz ? { tz } : {}) } : { every: rule };
      const body = { args: JSON.parse(args) as unknown[], kwargs: JSON.parse(kwargs) as Record<string, unknown>, ...when };
      if (before) await call("put", "/api/schedules/{name}", { path: { name: before.name }, body });
      else await call("post", "/api/schedules", { body: { name, task, ...body } });
      toast(before ? `${before.name} is changed` : `${name} is made`);
      close();
      done();
    });
  };
  return (
    <Dialog title={before ? `Edit ${before.name}` : "New schedule"} close={close}>
      <form onSubmit={act}>
        {!before && <label class="field">Name<input required value={name} onInput={(event) => setName(event.currentTarget.value)} /></label>}
        {!before && <label class="field">Task<input required list="tasks" value={task} onInput={(event) => setTask(event.currentTarget.value)} /></label>}
        <datalist id="tasks">{(tasks.data?.tasks ?? []).slice(0, 500).map((one) => <option key={one.task} value={one.task} />)}</datalist>
        <label class="field">Rule<select value={kind} onChange={(event) => setKind(event.currentTarget.value)}><option value="cron">cron</option><option value="every">every</option></select></label>
        <label class="field">{kind === "cron" ? "Minute, hour, day, month, weekday" : "Interval, such as 30s or 2h"}<input required value={rule} onInput={(event) => setRule(event.currentTarget.value)} /></label>
        {kind === "cron" && <label class="field">Time zone<input placeholder="UTC" value={tz} onInput={(event) => setTz(event.currentTarget.value)} /></label>}
        <label class="field">Arguments, a JSON list<input class="code" value={args} onInput={(event) => setArgs(event.currentTarget.value)} /></label>
        <label class="field">Keyword arguments, JSON<input class="code" value={kwargs} onInput={(event) => setKwargs(event.currentTarget.value)} /></label>
        {error && <Failed error={error} />}
        <footer><Button onClick={close}>Close</Button><Button kind="main" type="submit" disabled={busy}>{before ? "Change it" : "Make it"}</Button></footer>
      </form>
    </Dialog>
  );
}
