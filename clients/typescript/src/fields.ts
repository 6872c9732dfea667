/** Fields of a question: which one was refused, and whether a client sent its value. */

const FROM_CLIENTS: ReadonlySet<string> = new Set([
  ...["method", "path", "host", "user_agent", "accept_language", "platform"],
  ...["account", "username", "org", "user", "token", "scopes", "api_key", "client.id"],
  ...["device", "device.session_id", "device.client_id", "device.fingerprint"],
]);

/**
 * True if the field holds what a client sent. The others (`class`, `cost`, `layers`, `ip`, …)
 * are chosen by the application: a wrong one is its own mistake.
 */
export function isFromClient(field: string | undefined): field is string {
  // The third member of a list is `scopes[2]`, the path of the second check of a batch
  // `checks[1].path`.
  const name = field?.replace(/^checks\[\d+\]\./, "").replace(/\[.*$/, "");
  return name !== undefined && FROM_CLIENTS.has(name);
}

/**
 * Name of the first field that holds half of a surrogate pair. JSON can carry one, and
 * Palisade would refuse the whole question without naming the field.
 */
export function notUnicode(facts: object): string | undefined {
  for (const [name, text] of texts(facts, "")) if (/\p{Surrogate}/u.test(text)) return name;
  return undefined;
}

/** Name of the field that takes most room, for a question that is too large. */
export function longest(facts: object): string | undefined {
  const sizes = new Map<string, number>();
  for (const [name, text] of texts(facts, "")) {
    const whole = name.startsWith("checks[") ? name : name.replace(/\[.*$/, "");
    sizes.set(whole, (sizes.get(whole) ?? 0) + text.length);
  }
  return [...sizes].sort(([, a], [, b]) => b - a)[0]?.[0];
}

function* texts(value: unknown, name: string): Generator<[string, string]> {
  if (typeof value === "string") yield [name, value];
  else if (Array.isArray(value)) for (const [n, each] of value.entries()) yield* texts(each, `${name}[${n}]`);
  else if (typeof value === "object" && value !== null) {
    for (const [key, each] of Object.entries(value)) yield* texts(each, name === "" ? key : `${name}.${key}`);
  }
}
