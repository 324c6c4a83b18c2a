// API keys and the audit log, for administrators.
import { useState } from "preact/hooks";
import { call, type ApiKey } from "../api";
import { useLoad } from "../hooks";
import type { Place } from "../router";
import { Button, Confirm, Copy, Dialog, Empty, Failed, Heading, Panel, Shown, useAction, When } from "../ui";

const ROLES = ["read", "submit", "work", "admin"] as const;
const list = (text: string): string[] | undefined => text.split(/[\s,]+/).filter(Boolean).length > 0 ? text.split(/[\s,]+/).filter(Boolean) : undefined;

export default function Keys(_: { place: Place }) {
  const keys = useLoad("keys", (signal) => call("get", "/api/keys", { signal }), null);
  const audit = useLoad("audit", (signal) => call("get", "/api/audit", { query: { limit: 200 }, signal }), null);
  const [making, setMaking] = useState(false);
  const [revoking, setRevoking] = useState<ApiKey | null>(null);
  const done = () => {
    keys.reload();
    audit.reload();
  };
  return (
    <>
      <Heading title="Keys"><Button kind="main" needs="admin" onClick={() => setMaking(true)}>New key</Button></Heading>
      <Panel title="API keys" class="flush">
        <Shown loaded={keys}>
          {(found) => found.keys.length === 0 ? <Empty title="There are no keys">The server answers everybody on this machine, and nobody else. The first key ends that.</Empty> : (
            <div class="scroll"><table>
              <thead><tr><th scope="col">Name</th><th scope="col">Roles</th><th scope="col">For</th><th scope="col">Created</th><th scope="col">Expires</th><th scope="col"><span class="hidden">Actions</span></th></tr></thead>
              <tbody>
                {found.keys.map((one) => (
                  <tr key={one.id}>
                    <th scope="row">{one.name} <code class="muted">{one.id}</code></th>
                    <td>{one.roles.join(", ")}{one.hides_values && <div class="muted">sees no arguments</div>}</td>
                    <td>{one.queues || one.tasks ? [...(one.queues ?? []).map((name) => `queue ${name}`), ...(one.tasks ?? []).map((name) => `task ${name}`)].join(", ") : "everything"}</td>
                    <td><When at={one.created_at} /></td>
                    <td><When at={one.expires_at} none="never" /></td>
                    <td class="buttons"><Button kind="danger" needs="admin" onClick={() => setRevoking(one)} aria-label={`Revoke ${one.name}`}>Revoke</Button></td>
                  </tr>
                ))}
              </tbody>
            </table></div>
          )}
        </Shown>
      </Panel>
      <Panel title="Audit log" class="flush">
        <Shown loaded={audit}>
          {(found) => found.entries.length === 0 ? <Empty title="No administrator did anything yet" /> : (
            <div class="scroll"><table class="small">
              <thead><tr><th scope="col">When</th><th scope="col">Who</th><th scope="col">Action</th><th scope="col">Target</th></tr></thead>
              <tbody>{found.entries.map((one, n) => <tr key={n}><td><When at={one.at} /></td><td>{one.who}</td><td>{one.action}</td><td><code class="target">{one.target.slice(0, 400)}</code></td></tr>)}</tbody>
            </table></div>
          )}
        </Shown>
      </Panel>
      {making && <Make close={() => setMaking(false)} done={done} />}
      {revoking && <Confirm title={`Revoke ${revoking.name}?`} text="Servers refuse it within a second or two." button="Revoke it" close={() => setRevoking(null)} act={() => call("delete", "/api/keys/{id}", { path: { id: revoking.id } }).then(done)} />}
    </>
  );
}

function Make({ close, done }: { close: () => void; done: () => void }) {
  const [name, setName] = useState("");
  const [roles, setRoles] = useState<string[]>(["read"]);
  const [queues, setQueues] = useState("");
  const [tasks, setTasks] = useState("");
  const [expires, setExpires] = useState("");
  const [hides, setHides] = useState(false);
  const [secret, setSecret] = useState<string | null>(null);
  const { busy, error, run } = useAction();
  const act = (event: Event) => {
    event.preventDefault();
    void run(async () => {
      const made = await call("post", "/api/keys", { body: { name, roles: roles as (typeof ROLES)[number][], queues: list(queues), tasks: list(tasks), expires: expires || undefined, hides_values: hides } });
      setSecret(made.secret);
      done();
    });
  };
  if (secret !== null) {
    return (
      <Dialog title="The new key" close={close}>
        <p>Keep it now: it is shown only once.</p>
        <pre class="code" tabIndex={0}>{secret}</pre>
        <footer><Copy text={secret} kind="plain">Copy</Copy><Button kind="main" onClick={close}>Done</Button></footer>
      </Dialog>
    );
  }
  return (
    <Dialog title="New key" close={close}>
      <form onSubmit={act}>
        <label class="field">Name<input required value={name} onInput={(event) => setName(event.currentTarget.value)} /></label>
        <fieldset><legend>Roles</legend>{ROLES.map((role) => <label key={role}><input type="checkbox" checked={roles.includes(role)} onChange={() => setRoles(roles.includes(role) ? roles.filter((one) => one !== role) : [...roles, role])} /> {role}</label>)}</fieldset>
        <label class="field">Only these queues<input placeholder="all" value={queues} onInput={(event) => setQueues(event.currentTarget.value)} /></label>
        <label class="field">Only these tasks<input placeholder="all" value={tasks} onInput={(event) => setTasks(event.currentTarget.value)} /></label>
        <label class="field">Expires in<input placeholder="never" value={expires} onInput={(event) => setExpires(event.currentTarget.value)} /></label>
        <label><input type="checkbox" checked={hides} onChange={() => setHides(!hides)} /> It does not see arguments, results and errors</label>
        {error && <Failed error={error} />}
        <footer><Button onClick={close}>Close</Button><Button kind="main" type="submit" disabled={busy || roles.length === 0}>Make it</Button></footer>
      </form>
    </Dialog>
  );
}
