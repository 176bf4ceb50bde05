"""Checks of an export of 128 MiB through libnbd: libnbd_checks.py URI MODE.

libnbd's strict mode is off, so that requests go out that it would refuse to send.
"""

import errno
import os
import sys

import nbd

URI, MODE = sys.argv[1:]
MIB = 1 << 20
SIZE = 128 * MIB
UNKNOWN_FLAG = 0x8000


def nothing(*_):
    """A callback for replies that must not come."""
    return 0


def handle(**settings):
    """An unconnected handle."""
    h = nbd.NBD()
    h.set_strict_mode(0)
    if settings.get("context"):
        h.add_meta_context("base:allocation")
    if settings.get("simple"):
        h.set_request_structured_replies(False)
    if settings.get("options"):
        h.set_opt_mode(True)
    if "handshake_flags" in settings:
        h.set_handshake_flags(settings["handshake_flags"])
    return h


def connect(**settings):
    h = handle(**settings)
    h.connect_uri(URI)
    return h


def refused(expected, call, *args, **kwargs):
    """Asserts that a call fails with this error."""
    try:
        call(*args, **kwargs)
    except nbd.Error as error:
        assert error.errnum == expected, f"{args}: {error}, expected {errno.errorcode[expected]}"
        return
    raise AssertionError(f"{call.__name__}{args} {kwargs} was not refused")


def status(h, length, offset, flags=0):
    """The extents of a block status request, as (length, state)."""
    extents = []

    def extent(context, at, entries, _error):
        assert (context, at) == ("base:allocation", offset)
        extents.extend(zip(entries[::2], entries[1::2]))

    h.block_status(length, offset, extent, flags=flags)
    return extents


def requests():
    h = connect(context=True)
    assert h.get_size() == SIZE
    assert h.get_structured_replies_negotiated()
    einval, enospc = errno.EINVAL, errno.ENOSPC

    # Flags: unknown ones, and known ones on the wrong command.
    refused(einval, h.pread, 512, 0, flags=UNKNOWN_FLAG)
    refused(einval, h.pwrite, b"a" * 512, 0, flags=0x4000)
    for flag in nbd.CMD_FLAG_NO_HOLE, nbd.CMD_FLAG_FAST_ZERO, nbd.CMD_FLAG_DF:
        refused(einval, h.pwrite, b"a" * 512, 0, flags=flag)
    for flag in nbd.CMD_FLAG_REQ_ONE, nbd.CMD_FLAG_NO_HOLE:
        refused(einval, h.pread, 512, 0, flags=flag)
    # FUA goes with every command.
    fua = nbd.CMD_FLAG_FUA
    assert len(h.pread(512, 0, flags=fua)) == 512
    h.pwrite(b"F" * 512, 512, flags=fua)
    h.zero(4096, 8192, flags=fua)
    h.trim(4096, 1 * MIB, flags=fua)
    h.cache(4096, 0, flags=fua)
    h.flush(flags=fua)
    assert h.pread(512, 512) == b"F" * 512
    assert h.pread(4096, 8192) == bytes(4096)

    # Out of range.
    for offset in SIZE - 1, SIZE, SIZE + 4096, (1 << 63) - 512, (1 << 64) - 256:
        refused(einval, h.pread, 512, offset)
        refused(enospc, h.pwrite, b"x" * 512, offset)
        refused(enospc, h.zero, 512, offset)
        refused(einval, h.trim, 512, offset)
        refused(einval, h.cache, 512, offset)
        refused(einval, h.block_status, 512, offset, nothing)
    # The last byte is still inside.
    h.pwrite(b"!", SIZE - 1)
    assert h.pread(1, SIZE - 1) == b"!"

    # Nothing at all.
    for call, args in (
        (h.pread, (0, 0)),
        (h.pwrite, (b"", 0)),
        (h.zero, (0, 0)),
        (h.trim, (0, 0)),
        (h.cache, (0, 0)),
        (h.block_status, (0, 0, nothing)),
    ):
        refused(einval, call, *args)

    # Fast zeroes are never faster; others are carried out.
    refused(errno.ENOTSUP, h.zero, 4096, 0, flags=nbd.CMD_FLAG_FAST_ZERO)
    h.pwrite(b"z" * 8192, 0)
    h.zero(4096, 2048, flags=nbd.CMD_FLAG_NO_HOLE)
    assert h.pread(8192, 0) == b"z" * 2048 + bytes(4096) + b"z" * 2048

    # DF: one chunk. Without it the chunks cover the whole, once.
    for flags in nbd.CMD_FLAG_DF, 0:
        seen = []
        h.pread_structured(MIB, 4096, lambda b, o, s, e: seen.append((o, len(b))), flags=flags)
        seen.sort()
        assert seen[0][0] == 4096 and sum(length for _, length in seen) == MIB, seen
        assert flags == 0 or len(seen) == 1, seen

    # Block status: in order, within what was asked for (the last may go beyond), at least one.
    extents = status(h, 64 * MIB, 0)
    assert extents and all(length > 0 for length, _ in extents), extents
    one = status(h, 64 * MIB, 4096, flags=nbd.CMD_FLAG_REQ_ONE)
    assert len(one) == 1 and 0 < one[0][0] <= 64 * MIB, one

    # Large requests. No chunk of a reply may be longer than what is announced.
    assert h.get_block_size(nbd.SIZE_MAXIMUM) >= 64 * MIB
    large = os.urandom(33 * MIB)
    h.pwrite(large, 5)
    assert h.pread(33 * MIB, 5) == large
    assert len(h.pread(64 * MIB, 0)) == 64 * MIB
    h.shutdown()

    # Block status without a context, with and without structured replies.
    for simple in False, True:
        h = connect(simple=simple)
        refused(einval, h.block_status, 512, 0, nothing)
        assert len(h.pread(512, 0)) == 512
        h.shutdown()


def unaligned():
    h = connect()
    model = bytearray(os.urandom(64 * 1024))
    base = SIZE - len(model)
    h.pwrite(model, base)
    for length in 1, 2, 511, 513, 4095, 4097, 12289:
        for offset in 0, 1, 510, 512, 4095, 4096, 8191, len(model) - length:
            data = os.urandom(length)
            h.pwrite(data, base + offset)
            model[offset : offset + length] = data
            assert h.pread(length, base + offset) == data, (length, offset)
        h.zero(length, base + 20001)
        model[20001 : 20001 + length] = bytes(length)
        assert h.pread(len(model), base) == model, length
    for offset in range(0, len(model), 4097):
        length = min(4097, len(model) - offset)
        assert h.pread(length, base + offset) == model[offset : offset + length]
    h.shutdown()


def options():
    h = connect(options=True)
    names = []
    h.opt_list(lambda name, description: names.append(name))
    assert names == ["disk"], names
    h.opt_info()
    assert h.get_size() == SIZE and not h.is_read_only()
    sizes = [h.get_block_size(kind) for kind in range(3)]
    assert sizes == [1, 4096, 64 * MIB], sizes

    contexts = []
    h.opt_list_meta_context(lambda name: contexts.append(name))
    assert contexts == ["base:allocation"], contexts
    h.add_meta_context("base:allocation")
    h.add_meta_context("x-none:nonesuch")
    h.opt_info()
    assert h.can_meta_context("base:allocation")
    assert not h.can_meta_context("x-none:nonesuch")

    # A name that is not there is refused, and the next option is heard.
    h.set_export_name("nonesuch")
    refused(errno.ENOENT, h.opt_info)
    refused(errno.ENOENT, h.opt_go)
    h.set_export_name("")
    h.opt_go()
    assert h.get_size() == SIZE
    assert len(h.pread(512, 0)) == 512
    h.shutdown()

    connect(options=True).opt_abort()
    h = connect(options=True)
    h.set_export_name("n" * 4096)
    refused(errno.ENOENT, h.opt_go)


def old():
    for settings in (
        {"simple": True},
        {"handshake_flags": 0},
        {"handshake_flags": nbd.HANDSHAKE_FLAG_FIXED_NEWSTYLE},
        {"handshake_flags": nbd.HANDSHAKE_FLAG_NO_ZEROES},
    ):
        h = connect(**settings)
        assert h.get_size() == SIZE, settings
        data = os.urandom(10_000)
        h.pwrite(data, 777)
        assert h.pread(10_000, 777) == data, settings
        refused(errno.EINVAL, h.pread, 512, SIZE)
        refused(errno.ENOSPC, h.pwrite, b"x" * 512, SIZE)
        h.flush()
        h.shutdown()


{"requests": requests, "unaligned": unaligned, "options": options, "old": old}[MODE]()
