// What the real APIs refuse, as one pure check per wire: `null`, or the status and message that the vendor
// would send.
//
// The rules are those that brick a conversation for ever once they are broken: pairing and order of calls
// and results, unique and well-formed ids, empty text, roles, cache marks, the form in which a model is
// asked to think, and thinking that is bound to all that stood before it. Where vendors differ, the
// strictest counts.

export { Bindings } from './strict/bindings.mjs';
export { checkOpenai } from './strict/chat.mjs';
export { takes } from './strict/families.mjs';
export { checkAnthropic } from './strict/messages.mjs';
