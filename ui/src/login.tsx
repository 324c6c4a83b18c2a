// The way in with an API key, which is kept in a cookie that scripts cannot read.
import { useState } from "preact/hooks";
import { call } from "./api";
import { Button, Failed, useAction } from "./ui";

export function Login({ entered, message }: { entered: () => void; message: string }) {
  const [key, setKey] = useState("");
  const { busy, error, run } = useAction();
  const enter = (event: Event) => {
    event.preventDefault();
    void run(async () => {
      await call("post", "/api/session", { headers: { authorization: `Bearer ${key.trim()}` } });
      entered();
    });
  };
  return (
    <main class="alone">
      <form class="panel login" onSubmit={enter}>
        <h1>dray</h1>
        <label for="key">API key</label>
        <input id="key" type="password" autocomplete="current-password" value={key} onInput={(event) => setKey(event.currentTarget.value)} required />
        {error ? <Failed error={error} /> : <p class="muted">{message}</p>}
        <Button kind="main" type="submit" disabled={busy}>Enter</Button>
        <p class="muted"><code>dray keys create NAME --role admin</code> makes a key.</p>
      </form>
    </main>
  );
}
