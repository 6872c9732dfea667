/**
 * Ask a Palisade server: rate limits, quotas and login protection.
 *
 * Everything that decides takes `onUnavailable`: what happens when Palisade cannot be asked
 * is chosen at each use.
 */

export { BadChain, TrustedProxies } from "./address.js";
export type { Answer, Decision, Mode, Reading } from "./answer.js";
export { Palisade, type Choice, type PalisadeOptions } from "./client.js";
export { Seen, type EdgeOptions, type Identity, type IdentityOptions, type MoreFacts } from "./edge.js";
export { BadFacts, BadInput, Blocked, Misconfigured, PalisadeError, Unavailable } from "./errors.js";
export type { AttemptFacts, CheckFacts, Device, HitFacts, JobFacts, Layers, RequestFacts, SendFacts } from "./facts.js";
export {
  Attempt,
  Guard,
  type Challenge,
  type ChallengedFacts,
  type ChallengeFlow,
  type Flow,
  type Outcome,
  type Verified,
} from "./guard.js";
export { Reservation } from "./holder.js";
export type { Costs, ExtendAnswer, HeldReservation, More, ReserveAnswer, Settlement, Terms } from "./reservations.js";
export { Caps, type CapsOptions, type OnUnavailable } from "./unavailable.js";
