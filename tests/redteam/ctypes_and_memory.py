try:
    import ctypes
    print(ctypes.string_at(0, 100))
    ctypes.CDLL(None).system(b"id")
    print("ESCAPED")
except BaseException as error:
    print(type(error).__name__, error)
# ---
view = memoryview(bytearray(16))
for bad in (lambda: view[10**9], lambda: view.cast("Q")[-(10**9)], lambda: view[2**63:2**64], lambda: view.cast("x" * 100)):
    try:
        print(bad())
    except BaseException as error:
        print(type(error).__name__)
# ---
import struct, array
for bad in (lambda: struct.unpack_from("Q", b"12345678", 2**31), lambda: struct.pack("99999999999s", b""),
            lambda: struct.unpack("P" * 10**6, b""), lambda: array.array("d").frombytes(b"123"),
            lambda: array.array("Q", range(3))[2**31], lambda: struct.pack_into("Q", bytearray(4), -100, 1)):
    try:
        print(bad())
    except BaseException as error:
        print(type(error).__name__)
