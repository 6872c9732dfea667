// A login that asks the guard before and after the password is verified.

const palisade = process.env.PALISADE ?? "http://127.0.0.1:8080";

/** One guard command: `check`, `failure` or `success`. */
async function ask(step, facts) {
  const url = `${palisade}/v1/guard/login/${step}`;
  const answer = await fetch(url, { method: "POST", body: JSON.stringify(facts) });
  if (!answer.ok) throw new Error(`the guard answered ${answer.status}`);
  return answer.json();
}

async function login(ip, account, device, passwordIsRight) {
  const facts = { ip, account, device: { client_id: device } };
  const before = await ask("check", facts);
  if (before.decision !== "allow") return [429, before.retry_after];
  await ask(passwordIsRight ? "success" : "failure", facts);
  return [passwordIsRight ? 200 : 401, null];
}

const [ip, account, device, right] = process.argv.slice(2);
const [status, wait] = await login(ip, account, device, right === "right");
console.log(status, wait ?? "None");
