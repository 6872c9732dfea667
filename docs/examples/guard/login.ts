// A login that asks the guard before and after the password is verified, with nothing but
// `fetch`; `palisade-client` does all of it in three lines.

const palisade = process.env.PALISADE ?? "http://127.0.0.1:8080";

/** One guard command: `check`, `failure` or `success`; null if nobody can be asked, 400 if the name cannot be one. */
async function ask(step, facts) {
  const url = `${palisade}/v1/guard/login/${step}`;
  const body = JSON.stringify(facts);
  try {
    const answer = await fetch(url, { method: "POST", body, signal: AbortSignal.timeout(2000) });
    if (answer.status === 400 || answer.status === 413) return 400;
    return answer.ok ? await answer.json() : null;
  } catch {
    return null;
  }
}

async function login(ip, username, device, passwordIsRight) {
  const facts = { ip, account: username.toLowerCase(), username, device: { client_id: device } };
  const before = await ask("check", facts);
  if (before === null) return [503, null]; // no password is verified
  if (before === 400) return [400, null];
  if (before.decision !== "allow") return [429, before.retry_after];
  const outcome = passwordIsRight ? "success" : "failure";
  const after = await ask(outcome, { ...facts, request_id: before.request_id });
  if (passwordIsRight) return [200, null];
  await new Promise((resume) => setTimeout(resume, after?.delay_ms ?? 0));
  return [401, null];
}

const [ip, username, device, right] = process.argv.slice(2);
const [status, wait] = await login(ip, username, device, right === "right");
console.log(status, wait ?? "None");
