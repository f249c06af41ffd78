try:
    import marshal
    for data in (b"c" + b"\xff" * 200, b"(" * 5000, b"[\xff\xff\xff\x7f", b"s\xff\xff\xff\x7f", b""):
        try:
            marshal.loads(data)
        except BaseException as error:
            print(type(error).__name__)
except ImportError as error:
    print(error)
