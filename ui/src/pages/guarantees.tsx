// Guarantees: what the broker promises at present, and signs that it did not keep it.
import { call } from "../api";
import { count, counted, decimal } from "../format";
import { useLoad } from "../hooks";
import type { Place } from "../router";
import { Empty, Facts, Heading, Panel, Shown, State, When } from "../ui";

const known = (value: boolean | null, yes: string, no: string) => (value === null ? <State name="unknown" label="not known" /> : value ? <State name="succeeded" label={yes} /> : <State name="retrying" label={no} />);

export default function GuaranteesPage(_: { place: Place }) {
  const loaded = useLoad("guarantees", (signal) => call("get", "/api/guarantees", { signal }));
  if (loaded.error?.status === 403) return <><Heading title="Guarantees" /><Empty title="Not for this key">{loaded.error.message}</Empty></>;
  return (
    <>
      <Heading title="Guarantees" />
      <Shown loaded={loaded}>
        {(found) => {
          const leader = found.workers.find((worker) => worker.leader);
          const repairs = Object.entries(found.repairs.counts);
          return (
            <>
              {found.warnings.length > 0 && (
                <Panel title="Weaker than it could be">
                  <ul class="findings">{found.warnings.map((text) => <li key={text} class="warn"><p>{text}</p></li>)}</ul>
                </Panel>
              )}
              <div class="two">
                <Panel title="What is promised">
                  <p>{found.sentence}</p>
                  <Facts rows={[
                    ["Never lost", "An accepted job is kept until it is done, dead or cancelled with a reason, while the broker keeps its writes"],
                    ["Run", "At least once; exactly one completion is accepted"],
                    ["Restart of the broker", known(found.survives_restart, "accepted jobs survive", "accepted jobs may be lost")],
                    ["Power cut", known(found.survives_power_cut, "accepted jobs survive", "the last moments may be lost")],
                  ]} />
                </Panel>
                <Panel title="In force">
                  <Facts rows={[
                    ["Broker", <code>{found.place}</code>],
                    ["Durability", found.durability],
                    ["Data since", <When at={found.since} />],
                    ["Data lost", found.losses === 0 ? "never" : counted(found.losses, "time")],
                    ["Leads", leader ? <code>{leader.id}</code> : "no worker: schedules and recovery wait"],
                  ]} />
                </Panel>
              </div>
              <div class="two">
                <Panel title="Repairs">
                  {repairs.length === 0 ? <Empty title="None was ever needed">A sound store needs no repair.</Empty> : <Facts rows={[...repairs.map(([kind, n]) => [kind.replaceAll("_", " "), count(n)] as [string, string]), ["Last", <When at={found.repairs.last_at} />]]} />}
                  {Object.keys(found.repairs.finished).length > 0 && <p class="muted">Steps of killed processes that were finished, no damage: {Object.entries(found.repairs.finished).map(([kind, n]) => `${kind.replaceAll("_", " ")} ${count(n)}`).join(", ")}.</p>}
                </Panel>
                <Panel title="Workers, versions and clocks">
                  {found.workers.length === 0 ? <Empty title="No worker is running" /> : (
                    <div class="scroll"><table class="small">
                      <thead><tr><th scope="col">Worker</th><th scope="col">Version</th><th scope="col" class="number">Clock</th></tr></thead>
                      <tbody>{found.workers.slice(0, 200).map((worker) => <tr key={worker.id}><th scope="row">{worker.id}</th><td>{worker.version}</td><td class="number">{worker.skew === 0 ? "in step" : `${worker.skew > 0 ? "+" : ""}${decimal(worker.skew)} s`}</td></tr>)}</tbody>
                    </table></div>
                  )}
                </Panel>
              </div>
              {found.servers.length > 0 && (
                <Panel title="Servers">
                  <div class="scroll"><table>
                    <thead><tr><th scope="col">Server</th><th scope="col">Version</th><th scope="col">Role</th><th scope="col">Append-only file</th><th scope="col">Eviction</th></tr></thead>
                    <tbody>{found.servers.map((one) => <tr key={one.address}><th scope="row">{one.address}</th><td>{one.kind} {one.version}</td><td>{one.role ?? "—"}</td><td>{one.appendonly === null ? "not known" : one.appendonly ? "yes" : "no"}</td><td>{one.eviction ?? "not known"}</td></tr>)}</tbody>
                  </table></div>
                </Panel>
              )}
              <p class="muted">dray doctor checks more, and says what to do.</p>
            </>
          );
        }}
      </Shown>
    </>
  );
}
