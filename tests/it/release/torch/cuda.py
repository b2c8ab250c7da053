"""The caching allocator and its statistics."""

import itertools

import fake_gpu

MIB = 1 << 20
SMALL, LARGE, ROUND = 2 * MIB, 20 * MIB, 2 * MIB
_addresses = itertools.count(1)
_allocators = {}
#: Set by tests.
bad_fork = False
capturing = False
collected = 0


class _Block:
    def __init__(self, segment, start, size):
        self.segment, self.start, self.size, self.in_use = segment, start, size, False

    address = property(lambda self: (self.segment.number << 40) + self.start)


class _Segment:
    def __init__(self, size, is_small):
        self.number, self.size, self.is_small = next(_addresses), size, is_small
        self.blocks = [_Block(self, 0, size)]


class _Allocator:
    def __init__(self, index):
        self.index, self.segments = index, []

    def allocate(self, size):
        size = max(512, -(-size // 512) * 512)
        is_small = size <= MIB
        fits = [block for segment in self.segments if segment.is_small == is_small
                for block in segment.blocks if not block.in_use and block.size >= size]
        if fits:
            block = min(fits, key=lambda one: one.size)
        else:
            if is_small:
                whole = SMALL
            elif size < 10 * MIB:
                whole = LARGE
            else:
                whole = -(-size // ROUND) * ROUND
            segment = _Segment(whole, is_small)
            self.segments.append(segment)
            block = segment.blocks[0]
        rest = block.size - size
        if rest >= (512 if is_small else MIB + 1):
            blocks = block.segment.blocks
            blocks.insert(blocks.index(block) + 1, _Block(block.segment, block.start + size, rest))
            block.size = size
        block.in_use = True
        self.write()
        return block

    def free(self, block):
        block.in_use = False
        blocks = block.segment.blocks
        at = blocks.index(block)
        for other in (at + 1, at - 1):
            if 0 <= other < len(blocks) and not blocks[other].in_use:
                first, second = sorted((at, other))
                blocks[first].size += blocks[second].size
                del blocks[second]
                at = first

    def empty(self):
        self.segments = [one for one in self.segments
                         if any(block.in_use for block in one.blocks)]
        self.write()

    def write(self):
        fake_gpu.hold(self.index, 'torch', sum(one.size for one in self.segments))

    def stats(self):
        blocks = [block for one in self.segments for block in one.blocks]
        return {
            'allocated_bytes.all.current': sum(one.size for one in blocks if one.in_use),
            'reserved_bytes.all.current': sum(one.size for one in self.segments),
            'inactive_split_bytes.all.current': sum(
                one.size for one in blocks
                if not one.in_use and len(one.segment.blocks) > 1),
        }


def _allocator(index):
    if index not in _allocators:
        _allocators[index] = _Allocator(index)
    return _allocators[index]


def is_initialized():
    return bool(_allocators)


def is_available():
    return fake_gpu.COUNT > 0


def device_count():
    return fake_gpu.COUNT


def _is_in_bad_fork():
    return bad_fork


def is_current_stream_capturing():
    return capturing


def get_allocator_backend():
    return 'native'


def empty_cache():
    for one in _allocators.values():
        one.empty()


def ipc_collect():
    # PyTorch initializes CUDA in this function.
    _allocator(0)
    global collected
    collected += 1


def memory_stats(index=0):
    return _allocators[index].stats() if index in _allocators else {}


def memory_allocated(index=0):
    return memory_stats(index).get('allocated_bytes.all.current', 0)


def memory_reserved(index=0):
    return memory_stats(index).get('reserved_bytes.all.current', 0)
