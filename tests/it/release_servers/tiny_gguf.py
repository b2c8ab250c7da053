"""Writes a random llama model with one layer in GGUF 3: tiny_gguf.py FILE"""

import random
import struct
import sys

WIDTH, HIDDEN, HEADS, CONTEXT = 32, 64, 2, 65_536
UINT32, FLOAT32, STRING, ARRAY, INT32 = 4, 6, 8, 9, 5
SIMPLE = {UINT32: "<I", INT32: "<i", FLOAT32: "<f"}
tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
UNKNOWN, CONTROL, BYTE = 2, 3, 6


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def value(kind, it):
    if kind == STRING:
        return text(it)
    if kind == ARRAY:
        inner, items = it
        return struct.pack("<IQ", inner, len(items)) + b"".join(value(inner, item) for item in items)
    return struct.pack(SIMPLE[kind], it)


facts = [
    ("general.architecture", STRING, "llama"),
    ("llama.context_length", UINT32, CONTEXT),
    ("llama.embedding_length", UINT32, WIDTH),
    ("llama.block_count", UINT32, 1),
    ("llama.feed_forward_length", UINT32, HIDDEN),
    ("llama.attention.head_count", UINT32, HEADS),
    ("llama.attention.head_count_kv", UINT32, HEADS),
    ("llama.attention.layer_norm_rms_epsilon", FLOAT32, 1e-5),
    ("llama.rope.dimension_count", UINT32, WIDTH // HEADS),
    ("llama.vocab_size", UINT32, len(tokens)),
    ("tokenizer.ggml.model", STRING, "llama"),
    ("tokenizer.ggml.tokens", ARRAY, (STRING, tokens)),
    ("tokenizer.ggml.scores", ARRAY, (FLOAT32, [0.0] * len(tokens))),
    ("tokenizer.ggml.token_type", ARRAY, (INT32, [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256)),
    ("tokenizer.ggml.bos_token_id", UINT32, 1),
    ("tokenizer.ggml.eos_token_id", UINT32, 2),
    ("tokenizer.ggml.unknown_token_id", UINT32, 0),
]
# In GGUF, the innermost dimension comes first.
tensors = {"output_norm.weight": [WIDTH], "blk.0.attn_norm.weight": [WIDTH], "blk.0.ffn_norm.weight": [WIDTH]}
tensors |= {f"{name}.weight": [WIDTH, len(tokens)] for name in ("token_embd", "output")}
tensors |= {f"blk.0.attn_{name}.weight": [WIDTH, WIDTH] for name in ("q", "k", "v", "output")}
tensors |= {f"blk.0.ffn_{name}.weight": [WIDTH, HIDDEN] for name in ("gate", "up")}
tensors |= {"blk.0.ffn_down.weight": [HIDDEN, WIDTH]}

by_chance = random.Random(0)
head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(facts))
head += b"".join(text(name) + struct.pack("<I", kind) + value(kind, it) for name, kind, it in facts)
data = b""
for name, shape in tensors.items():
    head += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape) + struct.pack("<IQ", 0, len(data))
    count = shape[0] * (shape[1] if len(shape) > 1 else 1)
    # The size of every tensor is a multiple of 128 bytes, which satisfies the alignment of 32 bytes.
    data += struct.pack(f"<{count}f", *(by_chance.gauss(0, 0.02) if len(shape) > 1 else 1.0 for _ in range(count)))
with open(sys.argv[1], "wb") as file:
    file.write(head + b"\0" * (-len(head) % 32) + data)
