"""Reads TensorBoard's event files by their definition: TFRecord's framing and event.proto's messages."""
import struct


def get_masked_crc(data):
    """CRC-32C by long division, masked as TFRecord does."""
    remainder = 0xFFFFFFFF
    for byte in data:
        for bit in range(8):
            top = (remainder ^ (byte >> bit)) & 1
            remainder = (remainder >> 1) ^ (0x82F63B78 * top)
    crc = remainder ^ 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def read_varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at


def read_fields(data):
    """Yields number and value of each field of a message."""
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        if key & 7 == 0:
            value, at = read_varint(data, at)
        elif key & 7 == 2:
            n, at = read_varint(data, at)
            value, at = data[at:at + n], at + n
        else:
            kind, n = {1: ("<d", 8), 5: ("<f", 4)}[key & 7]
            value, at = struct.unpack(kind, data[at:at + n])[0], at + n
        yield key >> 3, value


def read_records(path):
    with open(path, "rb") as file:
        data = file.read()
    while data:
        n, crc = struct.unpack("<QI", data[:12])
        assert crc == get_masked_crc(data[:8]), "the length's checksum"
        record, (crc,) = data[12:12 + n], struct.unpack("<I", data[12 + n:16 + n])
        assert len(record) == n and crc == get_masked_crc(record), "the data's checksum"
        yield record
        data = data[16 + n:]


def read_events(path):
    """The file's version and a list of (step, {tag: value})."""
    version, events = None, []
    for record in read_records(path):
        fields = dict(read_fields(record))
        if 3 in fields:
            version = fields[3].decode()
            continue
        scalars = {}
        for _, value in read_fields(fields[5]):
            parts = dict(read_fields(value))
            scalars[parts[1].decode()] = parts[2]
        events.append((fields[2], scalars))
    return version, events
