# SPDX-License-Identifier: Apache-2.0
"""What stands in for an agent: a bare program with one bad habit each. ``standin.py HABIT ... --config FILE``.

It runs in a bare interpreter, so it imports the standard library only. ``say`` leaves words in its working
directory, which is the instance's ``home``.
"""

import json
import os
import signal
import sys
import time

GRANT = 3


def say(name: str, text: str = "") -> None:
    with open(f"{name}.new", "w") as file:
        file.write(text)
    os.rename(f"{name}.new", name)  # noqa: PTH104


def grant(seconds: float) -> None:
    os.write(GRANT, b"%f\n" % (time.clock_gettime(time.CLOCK_BOOTTIME) + seconds))


def idle() -> None:
    say("up", str(os.getpid()))
    while True:
        signal.pause()


def child(act, keep_env: bool = True) -> None:  # type: ignore[no-untyped-def]
    """Run ``act`` in a process that has left our session and lost its parent."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            act()
        os._exit(0)
    os.wait()


def write_pid(directory: str) -> None:
    with open(f"{directory}/{os.getpid()}", "w"):
        pass


def daemon() -> None:
    write_pid("pids")
    while True:
        signal.pause()


def hide() -> None:
    """A daemon whose environment says nothing of us."""
    write_pid("pids")
    os.execve("/bin/sleep", ["sleep", "1000"], {})


def step() -> None:
    """What a job leaves behind: only what the agent puts into a step's environment tells of us."""
    write_pid("pids")
    os.execve("/bin/sleep", ["sleep", "1000"], {"CORRAL_AGENT_ID": os.environ["CORRAL_INSTANCE"]})


def storm(depth: int) -> None:
    """Fork and fork again, each in its own session, until somebody ends it; bounded, so that a failing test does
    not take the host."""
    write_pid("pids")
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            if depth and os.fork() == 0:
                os.setsid()
                storm(depth - 1)
        except OSError:
            pass
        time.sleep(0.001)
        depth = max(depth - 1, 0)
    os._exit(0)


def runner(hops: int) -> None:
    """One process that is always a new one: each forks its successor and ends."""
    while hops:
        if os.fork() != 0:
            os._exit(0)
        hops -= 1
    os._exit(0)


def main() -> None:
    habit, arguments = sys.argv[1], sys.argv[2 : sys.argv.index("--config")]
    with open(sys.argv[sys.argv.index("--config") + 1]) as file:
        config = json.load(file)
    assert config["grant_fd"] == GRANT
    os.makedirs("pids", exist_ok=True)  # noqa: PTH103
    match habit:
        case "idle":
            grant(1000)
            idle()
        case "exit":
            os._exit(int(arguments[0]))
        case "die":
            os.kill(os.getpid(), int(arguments[0]))
        case "silent":
            idle()
        case "grants":
            for value in arguments:
                grant(float(value))
            idle()
        case "raw":
            os.write(GRANT, arguments[0].encode())
            idle()
        case "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            idle()
        case "polite":
            signal.signal(signal.SIGTERM, lambda *_: (say("asked"), os._exit(7)))
            idle()
        case "stopped":
            say("up", str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)
            idle()
        case "daemons":
            for _ in range(3):
                child(daemon)
            idle()
        case "daemons-and-exit":
            for _ in range(3):
                child(daemon)
            while len(os.listdir("pids")) < 3:  # noqa: PTH208
                time.sleep(0.001)
            os._exit(0)
        case "hidden":
            child(hide)
            idle()
        case "step":
            child(step)
            idle()
        case "stopped-children":
            child(lambda: (write_pid("pids"), os.kill(os.getpid(), signal.SIGSTOP)))
            idle()
        case "storm":
            for _ in range(3):
                child(lambda: storm(6))
            idle()
        case "runner":
            child(lambda: runner(1_000_000))
            idle()
        case "zombies":
            for _ in range(20):
                child(lambda: os._exit(0))
            idle()
        case "talk":
            for number in range(int(arguments[0])):
                print(f"{number:09}", flush=False)
            os._exit((sys.stdout.flush(), 0)[1])
        case "facts":
            umask = os.umask(0)
            with open("/proc/self/status") as file:
                status = dict(line.split(":\t", 1) for line in file.read().splitlines() if ":\t" in line)
            facts = {
                "env": dict(os.environ),
                "fds": sorted(int(name) for name in os.listdir("/proc/self/fd")),  # noqa: PTH208
                "ids": [os.getresuid(), os.getresgid(), os.getgroups()],
                "umask": umask,
                "no_new_privs": status["NoNewPrivs"].strip(),
                "ignored": status["SigIgn"].strip(),
                "blocked": status["SigBlk"].strip(),
                "sid": os.getsid(0) == os.getpid(),
                "cwd": os.getcwd(),  # noqa: PTH109
                "argv": sys.argv,
                "config": config,
            }
            say("facts", json.dumps(facts))
            idle()
        case "eat":
            data = []
            while True:
                data.append(b"x" * 1_000_000)
        case "read":
            results = {}
            for path in arguments:
                try:
                    with open(path) as file:
                        results[path] = file.read(20)
                except OSError as error:
                    results[path] = error.strerror
                try:
                    os.listdir(path)  # noqa: PTH208
                    results[path] = "listed"
                except OSError:
                    pass
            say("results", json.dumps(results))
            idle()


if __name__ == "__main__":
    main()
