/** Handlers that take a `Request` and give a `Response`: Next, Deno, Bun, workers. */

import { askIdentity, Edge, Seen, type EdgeOptions, type IdentityOptions } from "./edge.js";
import { refusalOf, responseOf } from "./errors.js";

export interface FetchOptions<Rest extends unknown[], Incoming extends Request = Request>
  extends EdgeOptions<Incoming> {
  /**
   * The peer's address: a `Request` does not have it, the server does. Where nothing but a
   * proxy of yours can connect and the platform does not tell, `() => undefined` together
   * with `unix` in `trustedProxies` believes that proxy.
   */
  peer: (request: Incoming, ...rest: Rest) => string | undefined;
  /** Asks again, after authentication. */
  identity?: IdentityOptions<Incoming>["identity"];
}

type Handler<Rest extends unknown[], Incoming extends Request> = (
  request: Incoming,
  seen: Seen,
  ...rest: Rest
) => Response | Promise<Response>;

/**
 * The handler behind both layers. What a guard inside it refuses is sent as it is. A framework's
 * own kind of `Request`, Next's for example, is handed on as it came.
 */
export function limited<Rest extends unknown[], Incoming extends Request = Request>(
  options: FetchOptions<Rest, Incoming>,
  handler: Handler<Rest, Incoming>,
): (request: Incoming, ...rest: Rest) => Promise<Response> {
  const edge = new Edge<Incoming>(options);
  return async (request, ...rest) => {
    const found = edge.see(incoming(request, options.peer(request, ...rest)), request);
    if (!(found instanceof Seen)) return responseOf(found);
    const refusal = (await edge.ask(found)) ?? (await identified(found, request, options));
    const response =
      refusal === undefined
        ? await handled(() => handler(request, found, ...rest))
        : responseOf(refusal);
    return marked(response, found);
  };
}

function identified<Rest extends unknown[], Incoming extends Request>(
  found: Seen,
  request: Incoming,
  options: FetchOptions<Rest, Incoming>,
) {
  const { client, identity, onUnavailable } = options;
  return identity && askIdentity(found, request, { client, identity, onUnavailable });
}

async function handled(handler: () => Response | Promise<Response>): Promise<Response> {
  try {
    return await handler();
  } catch (error) {
    const refusal = refusalOf(error);
    if (refusal !== undefined) return responseOf(refusal);
    throw error;
  }
}

/** A response from elsewhere may have headers that cannot be changed: it is copied. */
function marked(response: Response, found: Seen): Response {
  if (response.status === 101) return response;
  const copy = new Response(response.body, response);
  for (const [name, value] of Object.entries(found.headers())) {
    // A refusal of the guard keeps the id that its body names.
    if (name !== "X-Request-Id" || !copy.headers.has(name)) copy.headers.set(name, value);
  }
  return copy;
}

/** A `Request` as the layers read it. */
export function incoming(request: Request, peer: string | undefined) {
  return {
    peer,
    method: request.method,
    path: new URL(request.url).pathname,
    header: (name: string) => request.headers.get(name) ?? undefined,
  };
}

export { Seen };
