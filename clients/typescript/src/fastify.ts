/** Fastify: hooks before and after authentication, and headers on every answer. */

import type { Answer } from "./answer.js";
import { askIdentity, Edge, Seen, type EdgeOptions, type IdentityOptions } from "./edge.js";
import { Misconfigured, refusalOf } from "./errors.js";

/** As much of Fastify's request as is needed. */
export interface FastifyRequest {
  readonly method: string;
  readonly url: string;
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  readonly socket: { readonly remoteAddress?: string | undefined };
  readonly server: { readonly initialConfig: object };
}

/** As much of Fastify's reply as is needed. */
export interface FastifyReply {
  readonly sent: boolean;
  code(status: number): unknown;
  header(name: string, value: string): unknown;
  send(payload?: unknown): unknown;
}

type Hook<Request> = (request: Request, reply: FastifyReply) => Promise<unknown>;

const requests = new WeakMap<object, Seen>();

/** What the hook knows about a request; `seen(request).ip` is for the guard. */
export function seen(request: object): Seen {
  const found = requests.get(request);
  if (found === undefined) throw new Misconfigured("add `edgeLimit` as the first `onRequest` hook");
  return found;
}

/** `onRequest` hook: throttle, allowlist, address. */
export function edgeLimit<Request extends FastifyRequest>(options: EdgeOptions<Request>): Hook<Request> {
  const edge = new Edge<Request>(options);
  return async (request, reply) => {
    const found = edge.see(incoming(request), request);
    if (!(found instanceof Seen)) return refuse(reply, found);
    requests.set(request, found);
    return passed(found, reply, await edge.ask(found));
  };
}

/** `preHandler` hook, after authentication: organisation, user, token, scopes, quotas. */
export function identityLimit<Request extends FastifyRequest>(
  options: IdentityOptions<Request>,
): Hook<Request> {
  return async (request, reply) => {
    const found = seen(request);
    return passed(found, reply, await askIdentity(found, request, options));
  };
}

/**
 * For an error handler: sends what a guard refused, and 400 for bad input; false if the error
 * is another.
 */
export function sentRefusal(error: unknown, reply: FastifyReply): boolean {
  const refusal = reply.sent ? undefined : refusalOf(error);
  if (refusal === undefined) return false;
  refuse(reply, refusal);
  return true;
}

function passed(found: Seen, reply: FastifyReply, refusal: Answer | undefined): unknown {
  for (const [name, value] of Object.entries(found.headers())) reply.header(name, value);
  return refusal === undefined ? undefined : refuse(reply, refusal);
}

function refuse(reply: FastifyReply, answer: Answer): unknown {
  for (const [name, value] of Object.entries(answer.headers)) reply.header(name, value);
  reply.header("X-Request-Id", answer.requestId);
  reply.code(answer.status);
  return reply.send(answer.body ?? undefined);
}

function incoming(request: FastifyRequest) {
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

interface Routing {
  caseSensitive?: boolean;
  ignoreTrailingSlash?: boolean;
  ignoreDuplicateSlashes?: boolean;
  useSemicolonDelimiter?: boolean;
}

/** The path as Fastify's router compares it, by the options that it was made with. */
function routed(request: FastifyRequest): string {
  const config = request.server.initialConfig as Routing & { routerOptions?: Routing };
  const routing = { ...config, ...config.routerOptions };
  const end = routing.useSemicolonDelimiter === true ? /[?#;].*$/s : /[?#].*$/s;
  let path = request.url.replace(/^https?:\/\/[^/?#]*/i, "").replace(end, "") || "/";
  if (routing.ignoreDuplicateSlashes === true) path = path.replace(/\/{2,}/g, "/");
  if (routing.ignoreTrailingSlash === true) path = path.replace(/(.)\/$/, "$1");
  return routing.caseSensitive === false ? path.toLowerCase() : path;
}
