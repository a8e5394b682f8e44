"""A second model of PyTorch's caching allocator, for comparison: naive on purpose.

Written from the description of the allocator, apart from the Rust model and in another manner: a segment is a list of
blocks, and whatever is looked for is looked for by scanning all of them. It is slow and has no cleverness to be wrong in.
"""

MIB = 1 << 20
FREE, USED, WAITING, HOLE = "free", "used", "waiting", "hole"  # HOLE: no memory behind it


class Block:
    def __init__(self, start, size, state, rank):
        self.start, self.size, self.state, self.rank = start, size, state, rank
        self.requested, self.born = 0, 0


class Segment:
    """A piece of memory, or (page > 0) a range of addresses that pages are mapped into."""

    def __init__(self, lane, base, size, page, age):
        self.lane, self.base, self.size, self.page, self.age, self.blocks = lane, base, size, page, age, []


class OutOfMemory(Exception):
    pass


class Allocator:
    def __init__(
        self, *, total, free, limit, minor, max_split=None, max_non_split=None, large=20 * MIB, divisions=(0,) * 16, threshold=0.0, expandable=False, throw=False, fraction=1.0
    ):
        self.total, self.free_memory, self.limit, self.minor = total, free, limit, minor
        if limit is None and fraction < 1.0 and minor >= 10:
            self.limit = int(fraction * total + 0.5) if minor >= 13 else int(fraction * total)
        self.max_split, self.large, self.divisions = max_split, large, divisions
        self.max_non_split = large if max_non_split is None else max_non_split
        self.threshold, self.expandable, self.throw, self.fraction = threshold, expandable, throw, fraction
        self.segments, self.waiting = [], []
        self.blocks_made = self.segments_made = 0
        self.clock = {}
        self.next_address, self.returned = 0x7000_0000_0000, {}
        self.now = dict.fromkeys(("allocated", "reserved", "active", "requested", "inactive_split", "segments"), 0)
        self.peak = dict(self.now)
        self.retries = self.ooms = self.device_allocs = self.device_frees = 0

    # --- numbers ---
    def count(self, name, change):
        self.now[name] += change
        self.peak[name] = max(self.peak[name], self.now[name])

    def rounded(self, n):
        if n < 512:
            return 512
        division = self.divisions[min(max(n.bit_length() - 21, 0), 15)]
        if division > 1 and n > 512 * division:
            power = 1 << (n.bit_length() - 1)
            if n == power:
                return n
            step = power // division
            return -(-n // step) * step
        return -(-n // 512) * 512

    def segment_size(self, size):
        if size <= MIB:
            return 2 * MIB
        return self.large if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB

    # --- addresses, as the other model makes them up ---
    def address(self, size, segment):
        if segment and self.returned.get(size):
            return self.returned[size].pop()
        at = self.next_address
        self.next_address += size + 2 * MIB
        return at

    # --- blocks ---
    def new_block(self, segment, start, size, state):
        self.blocks_made += 1
        rank = {"address": 0, "block": self.blocks_made, "segment": segment.age}["address" if self.minor <= 11 else "block" if self.minor == 12 else "segment"]
        return Block(start, size, state, rank)

    def set_free(self, segment, block):
        block.state, block.born = FREE, self.clock.get(segment.lane[:1] + segment.lane[2:], 0)

    def all(self, lane, state):
        return [(s, b) for s in self.segments if s.lane == lane for b in s.blocks if b.state == state]

    @staticmethod
    def order(pair):
        return pair[1].size, pair[1].rank, pair[1].start

    def merge(self, segment, block, state):
        """Makes one block of this one and its neighbours in that state; what they had, and it survives."""
        gained = 0
        for step in (-1, 1):
            at = segment.blocks.index(block) + step
            if 0 <= at < len(segment.blocks) and segment.blocks[at].state == state:
                other = segment.blocks.pop(at)
                block.start, block.size = min(block.start, other.start), block.size + other.size
                gained += other.size
        return gained

    # --- asking ---
    def malloc(self, n, stream=0, pool=(0, 0)):
        size = self.rounded(n)
        lane = (pool, stream, size <= MIB)
        expandable = self.expandable and (pool == (0, 0) or self.minor >= 5)
        capturing = pool != (0, 0) and (pool[0] != 0 or self.minor < 13)
        found = self.find(lane, size, expandable)
        if found is None:
            if self.limit is not None and self.threshold > 0:
                self.collect_garbage()
            found, why = self.take_from_device(lane, size, expandable)
            if found is None and why == "rejected":
                self.ooms += 1
                raise OutOfMemory(why)
            if found is None and self.release_oversize(lane, size):
                found, why = self.take_from_device(lane, size, expandable)
            if found is None and not capturing:
                self.empty_cache()
                self.retries += 1
                found, why = self.take_from_device(lane, size, expandable)
            if found is None:
                self.ooms += 1
                raise OutOfMemory(why)
        segment, block = found
        whole = len(segment.blocks) == 1
        rest = block.size - size
        cut = rest >= 512 if lane[2] or self.expandable else size < (self.max_split or 1 << 62) and rest > MIB
        if cut:
            front = self.new_block(segment, block.start, size, USED)
            segment.blocks.insert(segment.blocks.index(block), front)
            block.start, block.size = block.start + size, rest
            self.set_free(segment, block)
            if not segment.page:
                self.count("inactive_split", rest if whole else -size)
            block = front
        elif not whole and not segment.page:
            self.count("inactive_split", -block.size)
        block.state, block.requested = USED, n
        self.count("allocated", block.size)
        self.count("active", block.size)
        self.count("requested", n)
        return segment, block

    def find(self, lane, size, expandable):
        if self.limit is not None and self.threshold > 0:
            key = lane[:1] + lane[2:]
            self.clock[key] = self.clock.get(key, 0) + 1
        fitting = sorted((pair for pair in self.all(lane, FREE) if pair[1].size >= size), key=self.order)
        if not fitting:
            return None
        at = 0
        if fitting[0][0].page and expandable:

            def extent(pair):
                segment, block = pair
                behind = segment.blocks.index(block) + 1
                hole = behind < len(segment.blocks) and segment.blocks[behind].state == HOLE
                return block.size + (segment.blocks[behind].size if hole else 0)

            while fitting[at][0].page and at + 1 < len(fitting) and extent(fitting[at + 1]) < extent(fitting[at]):
                at += 1
        elif fitting[0][0].page:
            fixed = [i for i, pair in enumerate(fitting) if not pair[0].page]
            if not fixed:
                return None
            at = fixed[0]
        block = fitting[at][1]
        if self.max_split is not None:
            if size < self.max_split <= block.size:
                return None
            if size >= self.max_split and block.size >= size + self.max_non_split:
                return None
        block.state = "taken"
        return fitting[at]

    def take_from_device(self, lane, size, expandable):
        segment_size = self.segment_size(size)
        if self.limit is not None and self.now["reserved"] + segment_size > self.limit:
            return None, "limit"
        if self.throw and self.minor >= 12 and self.now["reserved"] + segment_size > int(self.fraction * self.total):
            return None, "rejected"
        if expandable:
            return self.take_pages(lane, size)
        physical = -(-segment_size // (2 * MIB)) * 2 * MIB
        if physical > self.free_memory:
            return None, "device"
        self.free_memory -= physical
        self.segments_made += 1
        segment = Segment(lane, self.address(segment_size, True), segment_size, 0, self.segments_made)
        segment.blocks.append(self.new_block(segment, segment.base, segment_size, "taken"))
        self.segments.append(segment)
        self.device_allocs += 1
        self.count("reserved", segment_size)
        self.count("segments", 1)
        return (segment, segment.blocks[0]), None

    def take_pages(self, lane, size):
        page = 2 * MIB if lane[2] else self.large
        length = -(-(self.total + self.total // 8) // page) * page
        if size > length:
            return None, "device"
        holes = sorted(((s, b) for s, b in self.all(lane, HOLE)), key=lambda pair: pair[1].start)
        place = None
        for segment, hole in holes:
            at = segment.blocks.index(hole)
            if at > 0 and segment.blocks[at - 1].state == FREE:
                at -= 1
            run = 0
            for block in segment.blocks[at:]:
                if block.state not in (FREE, HOLE) or run >= size:
                    break
                run += block.size
            if run >= size:
                place = segment, segment.blocks[at]
                break
        if place is None:
            self.segments_made += 1
            segment = Segment(lane, self.address(length, False), length, page, self.segments_made)
            segment.blocks.append(self.new_block(segment, segment.base, length, HOLE))
            self.segments.append(segment)
            place = segment, segment.blocks[0]
        segment, block = place
        if block.state == HOLE and not self.map(segment, block, min(block.size, size)):
            return None, "device"
        while block.size < size:
            following = segment.blocks[segment.blocks.index(block) + 1]
            if not self.map(segment, following, min(size - block.size, following.size)):
                return None, "device"
            block = following
        block.state = "taken"
        return (segment, block), None

    def map(self, segment, hole, size):
        bytes_mapped = -(-size // segment.page) * segment.page
        if bytes_mapped > self.free_memory:
            return False
        self.free_memory -= bytes_mapped
        if bytes_mapped < hole.size:
            rest = self.new_block(segment, hole.start + bytes_mapped, hole.size - bytes_mapped, HOLE)
            segment.blocks.insert(segment.blocks.index(hole) + 1, rest)
            hole.size = bytes_mapped
        hole.state = "mapped"
        self.merge(segment, hole, FREE)
        self.set_free(segment, hole)
        self.device_allocs += 1
        self.count("reserved", bytes_mapped)
        return True

    # --- letting go ---
    def free(self, pair):
        self.count("allocated", -pair[1].size)
        self.give_back(pair)

    def free_later(self, pair):
        self.count("allocated", -pair[1].size)
        pair[1].state = WAITING
        ticket = list(pair)  # one of its own: the same block may wait again later
        self.waiting.append(ticket)
        return ticket

    def complete(self, ticket):
        if any(ticket is other for other in self.waiting):
            self.waiting = [other for other in self.waiting if other is not ticket]
            self.give_back(ticket)

    def give_back(self, pair):
        segment, block = pair
        self.count("active", -block.size)
        self.count("requested", -block.requested)
        block.state = "returning"
        change = -self.merge(segment, block, FREE)
        self.set_free(segment, block)
        if len(segment.blocks) > 1:
            change += block.size
        if not segment.page:
            self.count("inactive_split", change)

    # --- giving memory back to the device ---
    def release(self, segment):
        self.segments.remove(segment)
        self.free_memory += -(-segment.size // (2 * MIB)) * 2 * MIB
        self.returned.setdefault(segment.size, []).append(segment.base)
        self.device_frees += 1
        self.count("reserved", -segment.size)
        self.count("segments", -1)

    def whole_free(self, lane_test):
        return sorted(((s, s.blocks[0]) for s in self.segments if lane_test(s.lane) and not s.page and len(s.blocks) == 1 and s.blocks[0].state == FREE), key=self.order)

    def empty_cache(self):
        for ticket in list(self.waiting):
            self.complete(ticket)
        for small in (False, True):
            streams = list(dict.fromkeys(s.lane[1] for s in self.segments))
            shrink = []
            for stream in sorted(streams):
                lane = ((0, 0), stream, small)
                for segment, _ in self.whole_free(lambda other: other == lane):
                    self.release(segment)
                shrink += sorted(((s, b) for s, b in self.all(lane, FREE) if s.page), key=self.order)
            for segment, block in shrink:
                self.unmap(segment, block)

    def unmap(self, segment, block):
        page, offset = segment.page, block.start - segment.base
        first, last = -(-offset // page), (offset + block.size) // page
        if first >= last:
            return
        start, size = segment.base + first * page, (last - first) * page
        before, after = start - block.start, block.start + block.size - start - size
        at = segment.blocks.index(block)
        if before:
            piece = self.new_block(segment, block.start, before, FREE)
            self.set_free(segment, piece)
            segment.blocks.insert(at, piece)
        if after:
            piece = self.new_block(segment, start + size, after, FREE)
            self.set_free(segment, piece)
            segment.blocks.insert(segment.blocks.index(block) + 1, piece)
        block.start, block.size, block.state = start, size, "unmapped"
        self.merge(segment, block, HOLE)
        block.state = HOLE
        self.free_memory += size
        self.device_frees += 1
        self.count("reserved", -size)
        if len(segment.blocks) == 1:
            self.segments.remove(segment)

    def release_oversize(self, lane, size):
        if self.max_split is None:
            return False
        needed = max(size, self.max_split)
        free = sorted(self.all(lane, FREE), key=self.order)
        large = [pair for pair in free if pair[1].size >= needed]
        if large and not large[0][0].page:
            self.release(large[0][0])
            return True
        released = 0
        for segment, block in reversed([pair for pair in free if pair[1].size < needed]):
            if released >= needed or block.size < self.max_split:
                break
            if not segment.page:
                released += block.size
                self.release(segment)
        return released >= needed

    def collect_garbage(self):
        beyond = self.now["reserved"] - int(self.threshold * self.limit)
        if beyond <= 0:
            return
        clock = self.clock.get(((0, 0), False), 0)
        free = [(s, b) for s in self.segments if s.lane[0] == (0, 0) and not s.lane[2] for b in s.blocks if b.state == FREE and len(s.blocks) == 1]
        ages = {id(b): clock - b.born for _, b in free}
        total, count, reclaimed, freed = sum(ages.values()), len(free), 0, True
        candidates = [pair for pair in free if not pair[0].page]
        while reclaimed < beyond and freed and count > 0:
            mean, freed = total / count, False
            for segment, block in sorted(candidates, key=lambda pair: (pair[0].lane[1],) + self.order(pair)):
                if ages[id(block)] >= mean:
                    freed = True
                    reclaimed, total, count = reclaimed + block.size, total - ages[id(block)], count - 1
                    self.release(segment)
                    candidates.remove((segment, block))
