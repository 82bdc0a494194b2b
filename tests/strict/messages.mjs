// What the Messages API refuses: `null`, or the status and message that the vendor would send.

import { Bindings } from './bindings.mjs';
import { bad, ID, isObject, NAME, toolsFault, unicodeFault, unknownField } from './common.mjs';
import { thinkingFault, thinks } from './families.mjs';
import { blocksOf, isThinking, marksFault } from './marks.mjs';

const FIELDS =
  'model max_tokens stream system tools tool_choice thinking output_config cache_control stop_sequences ' +
  'metadata messages';
const TOOL_FIELDS =
  'name description input_schema cache_control strict eager_input_streaming defer_loading ' +
  'input_examples type';
const BLOCK_FIELDS = {
  text: 'type text cache_control',
  tool_use: 'type id name input cache_control',
  tool_result: 'type tool_use_id content is_error cache_control',
  thinking: 'type thinking signature',
  redacted_thinking: 'type data',
};
const MESSAGES_MAX = 100_000;

/** The first thing about `body` that the Messages API would refuse. */
export function checkAnthropic(body, bindings = new Bindings()) {
  if (!isObject(body)) return bad('Input should be a valid dictionary');
  const fault =
    unknownField(body, FIELDS, '') ??
    plainFault(body) ??
    toolFields(body.tools) ??
    toolsFault(
      (body.tools ?? []).map(({ name, description, input_schema: schema }) => ({
        name,
        description,
        schema,
      })),
    ) ??
    choiceFault(body) ??
    systemFault(body.system) ??
    unknownField(body.output_config, 'effort format', 'output_config.') ??
    thinkingFault(body) ??
    marksFault(body) ??
    unicodeFault(body);
  if (fault) return bad(fault);
  const found = messagesFault(body, bindings);
  return found ? bad(found) : null;
}

function plainFault(body) {
  if (typeof body.model !== 'string' || !body.model) return 'model: Field required';
  if (!Number.isInteger(body.max_tokens) || body.max_tokens < 1) return 'max_tokens: Field required';
  if (![undefined, true, false].includes(body.stream)) return 'stream: Input should be a valid boolean';
  return null;
}

function toolFields(tools) {
  if (tools === undefined) return null;
  if (!Array.isArray(tools)) return 'tools: Input should be a valid list';
  return tools.map((tool, at) => unknownField(tool, TOOL_FIELDS, `tools.${at}.`)).find(Boolean) ?? null;
}

function choiceFault(body) {
  const choice = body.tool_choice;
  if (choice === undefined) return null;
  if (!(body.tools ?? []).length) return 'tool_choice: may only be specified while providing tools';
  if (!['auto', 'any', 'tool', 'none'].includes(choice?.type)) return 'tool_choice.type: unknown';
  return null;
}

function systemFault(system) {
  if (system === undefined) return null;
  if (typeof system === 'string') return system === '' ? null : textFault(system);
  if (!Array.isArray(system)) return 'system: Input should be a valid list';
  return (
    system
      .map((block, at) =>
        block?.type === 'text'
          ? (unknownField(block, BLOCK_FIELDS.text, `system.${at}.`) ?? textFault(block.text))
          : `system.${at}.type: Input should be 'text'`,
      )
      .find(Boolean) ?? null
  );
}

function messagesFault(body, bindings) {
  const { messages } = body;
  if (!Array.isArray(messages) || messages.length === 0) return 'messages: at least one message is required';
  if (messages.length > MESSAGES_MAX) return `messages: at most ${MESSAGES_MAX} messages are permitted`;
  if (messages[0].role !== 'user') return 'messages: first message must use the "user" role';
  if (messages.at(-1).role !== 'user')
    return (
      'This model does not support assistant message prefill. ' +
      'The conversation must end with a user message.'
    );
  const ids = new Set();
  for (let at = 0; at < messages.length; at += 1) {
    const found = messageFault(body, at, ids, bindings);
    if (found) return found;
  }
  if (ids.size > 0 && !(body.tools ?? []).length) return 'tools: Field required when tool blocks are present';
  return loopFault(body);
}

function messageFault(body, at, ids, bindings) {
  const message = body.messages[at];
  if (!['user', 'assistant'].includes(message.role)) return `messages.${at}.role: unknown role`;
  const extra = unknownField(message, 'role content', `messages.${at}.`);
  if (extra) return extra;
  // The API itself would merge these; proxies and compatible servers refuse them.
  if (at > 0 && body.messages[at - 1].role === message.role) return 'messages: roles must alternate';
  const blocks = blocksOf(message);
  if (!Array.isArray(blocks) || blocks.length === 0)
    return `messages.${at}: all messages must have non-empty content`;
  const wanted = at > 0 ? calls(body.messages[at - 1]) : [];
  return (
    pairing(blocks, wanted, at) ??
    blocks.map((block) => blockFault(body, at, message, block, ids, bindings)).find(Boolean) ??
    null
  );
}

function calls(message) {
  return message.role === 'assistant'
    ? blocksOf(message)
        .filter((block) => block.type === 'tool_use')
        .map((block) => block.id)
    : [];
}

function pairing(blocks, wanted, at) {
  const results = blocks.filter((block) => block.type === 'tool_result').map((block) => block.tool_use_id);
  const orphan = results.find((id) => !wanted.includes(id));
  if (orphan !== undefined)
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
  const known = BLOCK_FIELDS[block?.type];
  if (!known) return `messages.${at}: unknown block type ${block?.type}`;
  const extra = unknownField(block, known, `messages.${at}.${block.type}.`);
  if (extra) return extra;
  switch (block.type) {
    case 'text':
      return textFault(block.text);
    case 'tool_use':
      return useFault(message, at, block, ids);
    case 'tool_result':
      return resultFault(message, block);
    default:
      if (message.role !== 'assistant') return 'thinking blocks can only be in assistant messages';
      if (block.type === 'thinking' && typeof block.thinking !== 'string')
        return `messages.${at}.thinking.thinking: Field required`;
      if ((block.signature ?? block.data) === undefined)
        return `messages.${at}.thinking.signature: Field required`;
      return bindings.fault(body, at, block);
  }
}

function useFault(message, at, block, ids) {
  if (message.role !== 'assistant') return 'tool_use blocks can only be in assistant messages';
  if (!ID.test(block.id ?? ''))
    return `messages.${at}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'`;
  if (ids.has(block.id)) return 'messages: `tool_use` ids must be unique';
  ids.add(block.id);
  if (!NAME.test(block.name ?? ''))
    return `messages.${at}.tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{1,64}$'`;
  if (!isObject(block.input)) return `messages.${at}.tool_use.input: Input should be a valid dictionary`;
  return null;
}

function resultFault(message, block) {
  if (message.role !== 'user') return 'tool_result blocks can only be in user messages';
  const { content } = block;
  if (![undefined, true, false].includes(block.is_error))
    return 'tool_result.is_error: Input should be a valid boolean';
  if (content === undefined || content === '') return null;
  if (typeof content === 'string') return textFault(content);
  if (!Array.isArray(content)) return 'tool_result.content: Input should be a valid list';
  if (block.is_error && content.some((part) => part.type !== 'text')) {
    return 'all content must be type `text` if `is_error` is true';
  }
  return (
    content
      .map((part) =>
        part.type === 'text'
          ? (unknownField(part, 'type text', 'tool_result.content.') ?? textFault(part.text))
          : null,
      )
      .find(Boolean) ?? null
  );
}

function textFault(text) {
  if (typeof text !== 'string' || text === '') return 'messages: text content blocks must be non-empty';
  if (text.trim() === '') return 'messages: text content blocks must contain non-whitespace text';
  return null;
}

/** What holds for the answer whose calls are answered just now, by the way in which thinking is asked for. */
function loopFault(body) {
  const { messages } = body;
  const results = blocksOf(messages.at(-1)).some((block) => block.type === 'tool_result');
  const at = messages.length - 2;
  if (!results || at < 0) return null;
  const blocks = blocksOf(messages[at]);
  const thought = blocks.some(isThinking);
  if (body.thinking?.type === 'enabled' && !isThinking(blocks[0])) {
    const why = 'When `thinking` is enabled, a final `assistant` message must start with a thinking block';
    const wanted = 'Expected `thinking` or `redacted_thinking`';
    return `messages.${at}.content.0.type: ${wanted}, but found \`${blocks[0].type}\`. ${why}`;
  }
  if (thought && !thinks(body)) {
    const why = 'an `assistant` message in the final position cannot contain `thinking`';
    return `messages.${at}.content.0: When thinking is disabled, ${why}`;
  }
  return null;
}
