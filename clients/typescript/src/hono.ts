/** Hono: a middleware before authentication, one after it. */

import { askIdentity, Edge, Seen, type EdgeOptions, type IdentityOptions } from "./edge.js";
import { Misconfigured, responseOf } from "./errors.js";
import { incoming } from "./fetch.js";

/** As much of Hono's context as is needed. */
export interface HonoContext {
  readonly req: { readonly raw: Request };
  readonly res: Response;
  header(name: string, value: string): void;
}

export interface HonoOptions<Context> extends EdgeOptions<Context> {
  /** The peer's address, for example `(c) => getConnInfo(c).remote.address`. */
  peer: (context: Context) => string | undefined;
}

type Middleware<Context> = (context: Context, next: () => Promise<void>) => Promise<Response | void>;

const requests = new WeakMap<object, Seen>();

/** What the middleware knows about a request; `seen(c).ip` is for the guard. */
export function seen(context: HonoContext): Seen {
  const found = requests.get(context.req.raw);
  if (found === undefined) throw new Misconfigured("use `edgeLimit` before everything else");
  return found;
}

/** Before authentication: throttle, allowlist, address. Stands first. */
export function edgeLimit<Context extends HonoContext>(options: HonoOptions<Context>): Middleware<Context> {
  const edge = new Edge<Context>(options);
  return async (context, next) => {
    const found = edge.see(incoming(context.req.raw, options.peer(context)), context);
    if (!(found instanceof Seen)) return responseOf(found);
    requests.set(context.req.raw, found);
    const refusal = await edge.ask(found);
    if (refusal !== undefined) return responseOf(refusal);
    await next();
    const own = context.res.headers.get("X-Request-Id");
    for (const [name, value] of Object.entries(found.headers())) context.header(name, value);
    // A refusal of the guard keeps the id that its body names.
    if (own !== null) context.header("X-Request-Id", own);
  };
}

/** After authentication: organisation, user, token, scopes, quotas. */
export function identityLimit<Context extends HonoContext>(
  options: IdentityOptions<Context>,
): Middleware<Context> {
  return async (context, next) => {
    const refusal = await askIdentity(seen(context), context, options);
    if (refusal !== undefined) return responseOf(refusal);
    await next();
  };
}
