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
    this.headers = headersOf(answer);
  }

  /** The refusal as a `Response`. */
  getResponse(): Response {
    return responseOf(this.answer);
  }
}

/**
 * The refused field holds what a client sent; `answer` is the 400 to send. Its body names the
 * field, never the value. The middlewares of this package send it.
 */
export class BadInput extends BadFacts {
  readonly status = 400;
  readonly statusCode = 400;
  readonly headers: Record<string, string>;

  constructor(
    message: string,
    override readonly field: string,
    readonly answer: Answer,
  ) {
    super(message, field);
    this.headers = headersOf(answer);
  }

  /** The refusal as a `Response`. */
  getResponse(): Response {
    return responseOf(this.answer);
  }
}

/** The answer to send, if the error is a refusal: of Palisade, or of input that cannot be read. */
export function refusalOf(error: unknown): Answer | undefined {
  return error instanceof Blocked || error instanceof BadInput ? error.answer : undefined;
}

/** A refusal as a `Response`. */
export function responseOf(answer: Answer): Response {
  const body = answer.body === null ? null : JSON.stringify(answer.body);
  const type = body === null ? {} : { "Content-Type": "application/json" };
  return new Response(body, { status: answer.status, headers: { ...headersOf(answer), ...type } });
}

function headersOf(answer: Answer): Record<string, string> {
  return { ...answer.headers, "X-Request-Id": answer.requestId };
}
