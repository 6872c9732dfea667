import { TrustedProxies, BadChain } from "./address.js";
import { badRequest, mergedHeaders, type Answer } from "./answer.js";
import type { Palisade } from "./client.js";
import { BadInput } from "./errors.js";
import { newRequestId, type Layers, type RequestFacts } from "./facts.js";
import { requireChoice, type OnUnavailable } from "./unavailable.js";

const PLAIN_ID = /^[A-Za-z0-9_.:/+=@~-]{1,128}$/;

/** Whom authentication found. `token` is the token's id, never the token. */
export type Identity = Pick<RequestFacts, "org" | "user" | "token" | "scopes" | "apiKey">;

/** What the host adds to the facts of a request. */
export type MoreFacts = Pick<RequestFacts, "class" | "cost" | "client" | "correlationId">;

/** How the layer before authentication asks. */
export interface EdgeOptions<Request> {
  client: Palisade;
  /** Proxies whose `X-Forwarded-For` is believed; `[]` for none. */
  trustedProxies: readonly string[];
  onUnavailable: OnUnavailable;
  /**
   * `edge` (default): the layer before authentication. `all`: everything at once, for
   * applications without identities. `none`: asks nothing here, a proxy in front does.
   */
  layers?: Layers | "none";
  facts?: (request: Request) => MoreFacts;
}

/** How the layer after authentication asks. */
export interface IdentityOptions<Request> {
  client: Palisade;
  /** Whom authentication found; `null` for nobody, who is refused where the route has a scope. */
  identity: (request: Request) => Identity | null | Promise<Identity | null>;
  onUnavailable: OnUnavailable;
  facts?: (request: Request) => MoreFacts;
}

/** A request as a framework has it. `path` is the one that its router reads. */
export interface Incoming {
  peer: string | undefined;
  method: string;
  path: string;
  header: (name: string) => string | undefined;
}

/** One request on its way through the application, and every answer about it. */
export class Seen {
  readonly answers: Answer[] = [];

  constructor(readonly facts: RequestFacts & { requestId: string }) {}

  /** The client's address, for the guard. */
  get ip(): string {
    return this.facts.ip;
  }

  get requestId(): string {
    return this.facts.requestId;
  }

  /** Headers of the answer to the client. */
  headers(): Record<string, string> {
    return { ...mergedHeaders(this.answers), "X-Request-Id": this.requestId };
  }
}

/** Asks before authentication. */
export class Edge<Request> {
  readonly #options: EdgeOptions<Request>;
  readonly #proxies: TrustedProxies;

  constructor(options: EdgeOptions<Request>) {
    requireChoice(options.onUnavailable);
    this.#options = options;
    this.#proxies = new TrustedProxies(options.trustedProxies);
  }

  /** What is known about a request, or the refusal of one that cannot be read. */
  see(incoming: Incoming, request: Request): Seen | Answer {
    try {
      return this.#seen(incoming, request);
    } catch (error) {
      if (error instanceof BadChain) return badRequest(newRequestId());
      if (error instanceof BadInput) return error.answer;
      throw error;
    }
  }

  /** The refusal, if there is one. */
  async ask(seen: Seen): Promise<Answer | undefined> {
    if (this.#options.layers === "none") return undefined;
    return asked(seen, this.#options.client, seen.facts, this.#options.onUnavailable);
  }

  #seen(incoming: Incoming, request: Request): Seen {
    const { peer, method, path, header } = incoming;
    const given = this.#proxies.trusts(peer) ? header("x-request-id") : undefined;
    const layers = this.#options.layers ?? "edge";
    const requestId = given !== undefined && PLAIN_ID.test(given) ? given : newRequestId();
    requireOneReading(path, requestId);
    return new Seen({
      ip: this.#proxies.client(peer, header("x-forwarded-for")),
      method,
      path,
      layers: layers === "none" ? "all" : layers,
      userAgent: header("user-agent"),
      requestId,
      ...this.#options.facts?.(request),
    });
  }
}

/**
 * Routers differ in how they read escaped slashes and dots as segments, so a path with them could
 * be counted as another one than the router takes: it is refused, as Palisade refuses the slashes.
 */
function requireOneReading(path: string, requestId: string): void {
  const segments = path.replace(/%2e/gi, ".").split("/");
  if (!/%2f|%5c|\\/i.test(path) && !segments.includes(".") && !segments.includes("..")) return;
  const detail = "`path` must not contain dot segments or escaped slashes";
  throw new BadInput(detail, "path", badRequest(requestId, detail, "path"));
}

/**
 * Asks after authentication: same request, same id, and who it is. Nobody is asked about too:
 * a route with a scope is not for callers without an identity.
 */
export async function askIdentity<Request>(
  seen: Seen,
  request: Request,
  options: IdentityOptions<Request>,
): Promise<Answer | undefined> {
  const who = await options.identity(request);
  const more = options.facts?.(request);
  const facts = { ...seen.facts, ...who, ...more, layers: "identity" as const };
  return asked(seen, options.client, facts, options.onUnavailable);
}

async function asked(
  seen: Seen,
  client: Palisade,
  facts: RequestFacts,
  onUnavailable: OnUnavailable,
): Promise<Answer | undefined> {
  try {
    const answer = await client.check(facts, { onUnavailable });
    seen.answers.push(answer);
    return answer.allowed ? undefined : answer;
  } catch (error) {
    // Anything else is a mistake of the host, or a Palisade of another version.
    if (error instanceof BadInput) return error.answer;
    throw error;
  }
}
