"""Lets `linecache`, and with it `traceback` and `inspect`, know the lines of blocks."""

import linecache

_updatecache = linecache.updatecache


def updatecache(filename, module_globals=None):
    text = block_source(filename)
    if text is None:
        return _updatecache(filename, module_globals)
    return [line + "\n" for line in text.split("\n")]


linecache.updatecache = updatecache
