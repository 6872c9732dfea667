/** Express: a middleware before authentication, one after it, and a handler of refusals. */

import type { Answer } from "./answer.js";
import { askIdentity, Edge, Seen, type EdgeOptions, type IdentityOptions } from "./edge.js";
import { Misconfigured, refusalOf } from "./errors.js";

/** As much of Express's request as is needed. */
export interface ExpressRequest {
  readonly method: string;
  readonly baseUrl: string;
  readonly path: string;
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  readonly socket: { readonly remoteAddress?: string | undefined };
  readonly app: { enabled(setting: string): boolean };
}

/** As much of Express's response as is needed. */
export interface ExpressResponse {
  readonly headersSent: boolean;
  setHeader(name: string, value: string): unknown;
  status(code: number): { json(body: unknown): unknown; end(): unknown };
}

type Next = (error?: unknown) => void;
type Middleware<Request> = (request: Request, response: ExpressResponse, next: Next) => void;

const requests = new WeakMap<object, Seen>();

/** What the middleware knows about a request; `seen(request).ip` is for the guard. */
export function seen(request: object): Seen {
  const found = requests.get(request);
  if (found === undefined) throw new Misconfigured("use `edgeLimit` before everything else");
  return found;
}

/** Before authentication: throttle, allowlist, address. Stands first. */
export function edgeLimit<Request extends ExpressRequest>(
  options: EdgeOptions<Request>,
): Middleware<Request> {
  const edge = new Edge<Request>(options);
  return (request, response, next) => {
    answered(request, response, next, async () => {
      const found = edge.see(incoming(request), request);
      if (!(found instanceof Seen)) return found;
      requests.set(request, found);
      return edge.ask(found);
    });
  };
}

/** After authentication: organisation, user, token, scopes, quotas. */
export function identityLimit<Request extends ExpressRequest>(
  options: IdentityOptions<Request>,
): Middleware<Request> {
  return (request, response, next) => {
    answered(request, response, next, () => askIdentity(seen(request), request, options));
  };
}

/** Sends what a guard refused as Palisade says it, and 400 for bad input. Stands last. */
export function refusals() {
  return (error: unknown, _request: object, response: ExpressResponse, next: Next): void => {
    const refusal = response.headersSent ? undefined : refusalOf(error);
    if (refusal !== undefined) refuse(response, refusal);
    else next(error);
  };
}

function answered(
  request: object,
  response: ExpressResponse,
  next: Next,
  ask: () => Promise<Answer | undefined>,
): void {
  const decided = (async () => ask())();
  decided.then((refusal) => {
    const found = requests.get(request);
    for (const [name, value] of Object.entries(found?.headers() ?? {})) response.setHeader(name, value);
    if (refusal === undefined) next();
    else refuse(response, refusal);
  }).catch(next);
}

function refuse(response: ExpressResponse, answer: Answer): void {
  for (const [name, value] of Object.entries(answer.headers)) response.setHeader(name, value);
  response.setHeader("X-Request-Id", answer.requestId);
  const sent = response.status(answer.status);
  if (answer.body === null) sent.end();
  else sent.json(answer.body);
}

function incoming(request: ExpressRequest) {
  return {
    peer: request.socket.remoteAddress,
    method: request.method,
    path: routed(request),
    header: (name: string) => {
      const value = request.headers[name];
      return Array.isArray(value) ? value.join(",") : value;
    },
  };
}

/** The path as Express compares it: by default neither case nor a last slash matters. */
function routed(request: ExpressRequest): string {
  let path = request.baseUrl + request.path;
  if (!request.app.enabled("case sensitive routing")) path = path.toLowerCase();
  if (!request.app.enabled("strict routing")) path = path.replace(/(.)\/$/, "$1");
  return path;
}
