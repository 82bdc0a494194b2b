// What the real APIs refuse, as one pure check per wire: `null`, or the status and message that the vendor
// would send.
//
// The rules are those that brick a conversation for ever once they are broken: pairing and order of calls
// and results, unique and well-formed ids, empty text, roles, cache marks, and thinking that is bound to
// all that stood before it.

import { createHash } from 'node:crypto';

const NAME = /^[a-zA-Z0-9_-]{1,64}$/;
const ID = /^[a-zA-Z0-9_-]+$/;
const ANTHROPIC_FIELDS = new Set([
  'model',
  'max_tokens',
  'stream',
  'system',
  'tools',
  'tool_choice',
  'thinking',
  'output_config',
  'cache_control',
  'stop_sequences',
  'metadata',
  'messages',
]);
const bad = (message, status = 400) => ({ status, message });

/** Thinking that a provider gave out, by signature, and what it was bound to. */
export class Bindings {
  #known = new Map();

  /** Remembers that `signature` was made in answer to `body`. */
  bind(signature, body) {
    this.#known.set(signature, {
      hash: prefixHash(body, body.messages),
      before: signatures(body.messages),
    });
  }

  /** Why the thinking block at `messages[at]` cannot stand there; `null` if it can. */
  fault(body, at, block) {
    const bound = this.#known.get(block.signature ?? block.data);
    if (!bound) return 'Invalid `signature` in `thinking` block';
    const earlier = body.messages.slice(0, at);
    if (bound.hash !== prefixHash(body, earlier)) {
      return '`thinking` block: The block is bound to a different conversation';
    }
    const held = signatures(earlier);
    const suffix = bound.before.slice(bound.before.length - held.length);
    if (JSON.stringify(held) !== JSON.stringify(suffix)) {
      return 'The block is bound to a different conversation (thinking is missing before it)';
    }
    return null;
  }
}

/** The first thing about `body` that the Messages API would refuse. */
export function checkAnthropic(body, bindings = new Bindings()) {
  for (const key of Object.keys(body))
    if (!ANTHROPIC_FIELDS.has(key)) return bad(`${key}: Extra inputs are not permitted`);
  if (typeof body.model !== 'string' || !body.model) return bad('model: Field required');
  if (!(body.max_tokens >= 1)) return bad('max_tokens: Field required');
  const fault =
    tools((body.tools ?? []).map((tool) => ({ name: tool.name, schema: tool.input_schema }))) ??
    systemFault(body.system) ??
    thinkingConfig(body) ??
    marks(body) ??
    unicode(body);
  if (fault) return bad(fault);
  const { messages } = body;
  if (!Array.isArray(messages) || messages.length === 0)
    return bad('messages: at least one message is required');
  if (messages[0].role !== 'user') return bad('messages: first message must use the "user" role');
  if (messages.at(-1).role !== 'user')
    return bad(
      'This model does not support assistant message prefill. ' +
        'The conversation must end with a user message.',
    );
  const ids = new Set();
  for (let at = 0; at < messages.length; at += 1) {
    const found = messageFault(body, at, ids, bindings);
    if (found) return bad(found);
  }
  if (ids.size > 0 && !(body.tools ?? []).length)
    return bad('tools: Field required when tool blocks are present');
  return null;
}

function messageFault(body, at, ids, bindings) {
  const message = body.messages[at];
  if (!['user', 'assistant'].includes(message.role)) return `messages.${at}.role: unknown role`;
  // The API itself would merge these; proxies and compatible servers refuse them.
  if (at > 0 && body.messages[at - 1].role === message.role) return 'messages: roles must alternate';
  const blocks = blocksOf(message);
  if (blocks.length === 0) return `messages.${at}: all messages must have non-empty content`;
  const wanted = at > 0 ? calls(body.messages[at - 1]) : [];
  return (
    pairing(message, blocks, wanted, at) ??
    blocks.map((block) => blockFault(body, at, message, block, ids, bindings)).find(Boolean) ??
    null
  );
}

function pairing(message, blocks, wanted, at) {
  const results = blocks.filter((block) => block.type === 'tool_result').map((block) => block.tool_use_id);
  const orphan = results.find((id) => !wanted.includes(id));
  if (orphan)
    return `messages.${at}: unexpected \`tool_use_id\` found in \`tool_result\` blocks: ${orphan}`;
  const twice = results.find((id, index) => results.indexOf(id) !== index);
  if (twice)
    return `each tool_use must have a single result. Found multiple \`tool_result\` blocks with id: ${twice}`;
  const missing = wanted.filter((id) => !results.includes(id));
  if (missing.length) {
    const where = `messages.${at - 1}: \`tool_use\` ids were found`;
    return `${where} without \`tool_result\` blocks immediately after: ${missing}`;
  }
  const firstOther = blocks.findIndex((block) => block.type !== 'tool_result');
  if (firstOther >= 0 && blocks.slice(firstOther).some((block) => block.type === 'tool_result')) {
    return `messages.${at}: \`tool_result\` blocks must come first`;
  }
  return null;
}

function blockFault(body, at, message, block, ids, bindings) {
  switch (block.type) {
    case 'text':
      return textFault(block.text);
    case 'tool_use':
      if (message.role !== 'assistant') return 'tool_use blocks can only be in assistant messages';
      if (!ID.test(block.id ?? ''))
        return `messages.${at}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'`;
      if (ids.has(block.id)) return 'messages: `tool_use` ids must be unique';
      ids.add(block.id);
      if (!NAME.test(block.name ?? '')) return `messages.${at}.tool_use.name: bad pattern`;
      if (!isObject(block.input))
        return `messages.${at}.tool_use.input: Input should be a valid dictionary`;
      return null;
    case 'tool_result':
      return resultFault(message, block);
    case 'thinking':
    case 'redacted_thinking':
      if (message.role !== 'assistant') return 'thinking blocks can only be in assistant messages';
      if ('cache_control' in block) return 'thinking.cache_control: Extra inputs are not permitted';
      return bindings.fault(body, at, block);
    default:
      return `messages.${at}: unknown block type ${block.type}`;
  }
}

function resultFault(message, block) {
  if (message.role !== 'user') return 'tool_result blocks can only be in user messages';
  const inner = Array.isArray(block.content) ? block.content : [];
  if (block.is_error && inner.some((part) => part.type !== 'text')) {
    return 'all content must be type `text` if `is_error` is true';
  }
  return inner.map((part) => (part.type === 'text' ? textFault(part.text) : null)).find(Boolean) ?? null;
}

function textFault(text) {
  if (typeof text !== 'string' || text === '') return 'messages: text content blocks must be non-empty';
  if (text.trim() === '') return 'messages: text content blocks must contain non-whitespace text';
  return null;
}

function systemFault(system) {
  if (system === undefined || typeof system === 'string') return null;
  if (!Array.isArray(system)) return 'system: Input should be a valid list';
  return system.map((block) => textFault(block.text)).find(Boolean) ?? null;
}

function thinkingConfig(body) {
  const kind = body.thinking?.type;
  if (/-(5|5-\d)$/.test(body.model) && kind === 'enabled') {
    return '"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive"';
  }
  if (/-4-5$/.test(body.model) && kind === 'adaptive')
    return 'adaptive thinking is not supported on this model';
  if (kind === 'enabled') {
    if (!(body.thinking.budget_tokens >= 1024)) return 'thinking.budget_tokens: should be at least 1024';
    if (body.thinking.budget_tokens >= body.max_tokens)
      return '`max_tokens` must be greater than budget_tokens';
  }
  return null;
}

function marks(body) {
  const marked = [];
  walk(body, (value) => {
    if (isObject(value.cache_control)) marked.push(value);
  });
  if (marked.length > 4)
    return `A maximum of 4 blocks with cache_control may be provided. Found ${marked.length}.`;
  if (marked.some((block) => block.cache_control.type !== 'ephemeral'))
    return 'cache_control.type: unknown';
  if (marked.some((block) => block.type === 'text' && !block.text))
    return 'cache_control cannot be set for empty text';
  return null;
}

/** The first thing about `body` that strict servers of chat completions would refuse. */
export function checkOpenai(body, { wantReasoning = false, refuse = [] } = {}) {
  const named = refuse.find((field) => field in body);
  if (named) return bad(`Unrecognized request argument supplied: ${named}`);
  if (typeof body.model !== 'string' || !body.model) return bad('you must provide a model parameter');
  const fault =
    tools(
      (body.tools ?? []).map((tool) => ({ name: tool.function?.name, schema: tool.function?.parameters })),
    ) ?? unicode(body);
  if (fault) return bad(fault);
  const { messages } = body;
  if (!Array.isArray(messages) || messages.length === 0) return bad("'messages' must not be empty");
  const ids = new Set();
  let open = [];
  for (let at = 0; at < messages.length; at += 1) {
    const message = messages[at];
    if (message.role !== 'tool' && open.length) {
      return bad(
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each " +
          `'tool_call_id'. The following tool_call_ids did not have response messages: ${open}`,
      );
    }
    if (message.role === 'tool') {
      if (!open.includes(message.tool_call_id))
        return bad(`unexpected tool_call_id ${message.tool_call_id}`);
      open = open.filter((id) => id !== message.tool_call_id);
    }
    const found = openaiFault(messages, at, ids, wantReasoning);
    if (found) return bad(found);
    open = message.role === 'assistant' ? (message.tool_calls ?? []).map((call) => call.id) : open;
  }
  if (open.length) return bad(`tool_call_ids did not have response messages: ${open}`);
  if (messages.at(-1).role === 'assistant') return bad('Cannot have assistant message at the end');
  return null;
}

function openaiFault(messages, at, ids, wantReasoning) {
  const message = messages[at];
  if (!('content' in message)) return `messages[${at}]: content is missing`;
  if (message.role === 'system') return at === 0 ? null : 'System message must be at the beginning.';
  if (message.role === 'tool') return typeof message.content === 'string' ? null : 'invalid tool content';
  if (message.role === 'user') {
    if (typeof message.content !== 'string' || !message.content.trim())
      return 'user content must not be empty';
    if (messages[at - 1]?.role === 'user')
      return 'Conversation roles must alternate user/assistant/user/assistant/...';
    return null;
  }
  if (message.role !== 'assistant') return `messages[${at}]: unknown role ${message.role}`;
  const list = message.tool_calls ?? [];
  if (messages[at - 1]?.role === 'assistant')
    return 'Conversation roles must alternate user/assistant/user/assistant/...';
  if (!['user', 'tool'].includes(messages[at - 1]?.role))
    return 'Conversation must start with a user message';
  if (list.length === 0 && (typeof message.content !== 'string' || !message.content.trim())) {
    return 'invalid message content type: assistant without content';
  }
  if (wantReasoning && list.length && !message.reasoning_content) {
    return 'The `reasoning_content` in the thinking mode must be passed back';
  }
  return list.map((call) => callFault(call, ids)).find(Boolean) ?? null;
}

function callFault(call, ids) {
  if (!ID.test(call.id ?? '')) return 'tool_calls: id is missing or malformed';
  if (ids.has(call.id)) return 'tool_calls: ids must be unique';
  ids.add(call.id);
  if (call.type !== 'function') return 'tool_calls: type must be function';
  if (!NAME.test(call.function?.name ?? '')) return 'tool_calls: bad name';
  try {
    if (isObject(JSON.parse(call.function.arguments))) return null;
  } catch {
    // falls through to the refusal
  }
  return 'invalid tool call arguments';
}

function tools(list) {
  const names = list.map((tool) => tool.name);
  if (names.some((name) => !NAME.test(name ?? ''))) return 'tools.name: String should match pattern';
  if (new Set(names).size !== names.length) return 'tools: Tool names must be unique.';
  if (list.some((tool) => tool.schema?.type !== 'object')) return 'tools.input_schema.type: Field required';
  return null;
}

function unicode(body) {
  let fault = null;
  walk(
    body,
    () => {},
    (text) => {
      if (text.includes('\0')) fault = 'strings must not contain NUL';
      if (/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/.test(text)) {
        fault = 'strings must be valid Unicode';
      }
    },
  );
  return fault;
}

function walk(value, onObject, onText = () => {}) {
  if (typeof value === 'string') onText(value);
  else if (Array.isArray(value)) value.forEach((item) => walk(item, onObject, onText));
  else if (isObject(value)) {
    onObject(value);
    Object.values(value).forEach((item) => walk(item, onObject, onText));
  }
}

function blocksOf(message) {
  return typeof message.content === 'string'
    ? [{ type: 'text', text: message.content }]
    : (message.content ?? []);
}

function calls(message) {
  return message.role === 'assistant'
    ? blocksOf(message)
        .filter((block) => block.type === 'tool_use')
        .map((block) => block.id)
    : [];
}

const isThinking = (block) => block.type === 'thinking' || block.type === 'redacted_thinking';

function signatures(messages) {
  return messages.flatMap((message) =>
    blocksOf(message)
      .filter(isThinking)
      .map((b) => b.signature ?? b.data),
  );
}

/**
 * Values count, key order and marks do not; thinking is looked at on its own, since its removal has own
 * rules.
 */
function prefixHash(body, messages) {
  const seen = messages.map((message) => ({
    role: message.role,
    content: blocksOf(message).filter((block) => !isThinking(block)),
  }));
  const value = canonical({ system: body.system ?? null, tools: body.tools ?? [], messages: seen });
  return createHash('sha256').update(JSON.stringify(value)).digest('hex');
}

function canonical(value) {
  if (Array.isArray(value)) return value.map(canonical);
  if (!isObject(value)) return value;
  const keys = Object.keys(value)
    .filter((key) => key !== 'cache_control')
    .sort();
  return Object.fromEntries(keys.map((key) => [key, canonical(value[key])]));
}

function isObject(value) {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
