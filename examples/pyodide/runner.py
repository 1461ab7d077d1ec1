"""Run the page's program as a task, which Stop can cancel at any await."""

import asyncio
import linecache
import sys
import traceback

from pyodide.code import eval_code_async

NAME = "program.py"
_task = None


async def run(program):
    """Run `program` in a fresh namespace. Returns a message about its end."""
    global _task
    linecache.cache[NAME] = (len(program), None, program.splitlines(keepends=True), NAME)  # so that errors show lines
    _task = asyncio.ensure_future(eval_code_async(program, {"__name__": "__main__"}, filename=NAME))
    try:
        await _task
    except asyncio.CancelledError:
        return "Stopped"
    except BaseException as e:
        own = [frame for frame in traceback.extract_tb(e.__traceback__) if frame.filename == NAME]
        print("".join(traceback.format_list(own)) + "".join(traceback.format_exception_only(e)), file=sys.stderr)
        return "Failed: see the output"
    return "Done"


def stop():
    """Cancel the program."""
    if _task is not None:
        _task.cancel()
