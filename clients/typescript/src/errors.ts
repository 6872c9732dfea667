import type { Answer } from "./answer.js";

/** Base of everything this package throws. */
export class PalisadeError extends Error {
  constructor(message: string) {
    super(message);
    this.name = new.target.name;
  }
}

/** Palisade could not be asked, or did not answer before the deadline. */
export class Unavailable extends PalisadeError {}

/** Palisade refused a field of the question; the message names it, never its value. */
export class BadFacts extends PalisadeError {
  constructor(
    message: string,
    readonly field?: string,
  ) {
    super(message);
  }
}

/**
 * The set-up cannot work: a wrong caller token, an unknown peer address, a bad option.
 *
 * Never answered by `onUnavailable`: a wrong token must be seen on the first request, not
 * let everything through.
 */
export class Misconfigured extends PalisadeError {}

/**
 * The decision is not `allow`; `answer` has status, headers and body to send.
 *
 * Express, Fastify and Hono take status and headers from an error by themselves.
 */
export class Blocked extends PalisadeError {
  readonly status: number;
  readonly statusCode: number;
  readonly headers: Record<string, string>;

  constructor(readonly answer: Answer) {
    super(`${answer.decision}: ${answer.rule ?? answer.error ?? answer.mode}`);
    this.status = this.statusCode = answer.status;
    this.headers = { ...answer.headers, "X-Request-Id": answer.requestId };
  }

  /** The refusal as a `Response`. */
  getResponse(): Response {
    const body = this.answer.body === null ? null : JSON.stringify(this.answer.body);
    const type = body === null ? {} : { "Content-Type": "application/json" };
    return new Response(body, { status: this.status, headers: { ...this.headers, ...type } });
  }
}
