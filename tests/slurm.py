"""A real SLURM of our own on 127.0.0.1: virtual nodes on this machine, without systemd, cgroups or root.

It needs the programs only (Debian: slurmctld slurmd slurm-client munge) and touches nothing outside its own folder: it
has its own key, ports, state and logs.
"""

import contextlib
import getpass
import os
import shutil
import socket
import stat
import subprocess
import tempfile
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "scontrol", "sinfo", "squeue")
SEARCH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])

SETTINGS = """
ClusterName=ours
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
# The life of a credential is also how long a job waits before it is started again.
AuthInfo=socket={folder}/munge/socket,cred_expire={requeue_s}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/state
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
DefMemPerCPU=100
KillWait=2
ReturnToService=2
MessageTimeout=5
SlurmdTimeout=30
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not():
    """What is missing for a SLURM here, or None."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=SEARCH) is None]
    return f"no {', '.join(missing)}; apt-get install slurmctld slurmd slurm-client munge" if missing else None


def can_fake_gpus():
    """Whether devices can be made, which needs root and fails in some containers."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            os.mknod(Path(folder) / "device", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        except OSError:
            return False
    return True


def call(program, *arguments, check=True):
    """Run one of SLURM's programs and return what it prints."""
    command = [shutil.which(program, path=SEARCH) or program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def start(program, *arguments):
    """Start a daemon, which goes to the background by itself and must keep no pipe of ours open."""
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run([shutil.which(program, path=SEARCH), *map(str, arguments)], check=True, **quiet)


def free_ports(n_ports):
    """Unused ports of 127.0.0.1, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n_ports)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def wait_until(true, what, seconds=90.0):
    """Wait until `true()` is true."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.05)


def has_ended(pid):
    """Whether a process is gone, or waits for its parent to notice that it is."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


class Slurm:
    """Context manager in which SLURM runs and SLURM_CONF points every program to it.

    Only root can make fake GPUs (copies of /dev/null, because SLURM needs devices).
    """

    def __init__(self, n_nodes=2, cpus=2, memory_mb=8000, gpus=0, requeue_s=5):
        self.names = [f"node{i}" for i in range(1, n_nodes + 1)]
        self.cpus, self.memory_mb, self.gpus, self.requeue_s = cpus, memory_mb, gpus, requeue_s

    def __enter__(self):
        # Not below pytest's folder, whose path may be too long for the name of a socket (108 characters).
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        self.folder.chmod(0o755)
        self.before = os.environ.get("SLURM_CONF")
        try:
            self._start_munge()
            self._write_settings()
            os.environ["SLURM_CONF"] = str(self.folder / "slurm.conf")
            self.controller_up()
            for name in self.names:
                start("slurmd", "-N", name)
            wait_until(lambda: self.states() == {name: "idle" for name in self.names}, "idle nodes")
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start_munge(self):
        munge = self.folder / "munge"
        munge.mkdir(mode=0o755)
        key = munge / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        options = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        start("munged", "--force", *(f"--{name}={munge / file}" for name, file in options.items()))

    def _write_settings(self):
        for name in ("state", *(f"spool-{name}" for name in self.names)):
            (self.folder / name).mkdir()
        host = socket.gethostname().partition(".")[0]
        port, *node_ports = free_ports(1 + len(self.names))
        gres = f" Gres=gpu:{self.gpus}" if self.gpus else ""
        nodes = [
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={node_port} CPUs={self.cpus} "
            f"RealMemory={self.memory_mb}{gres} State=UNKNOWN"
            for name, node_port in zip(self.names, node_ports)
        ]
        if self.gpus:
            devices = [self.folder / f"gpu{i}" for i in range(self.gpus)]
            for device in devices:
                os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
            (self.folder / "gres.conf").write_text("".join(f"Name=gpu File={device}\n" for device in devices))
            nodes.insert(0, "GresTypes=gpu")
        settings = SETTINGS.format(
            host=host,
            port=port,
            user=getpass.getuser(),
            folder=self.folder,
            requeue_s=self.requeue_s,
            nodes="\n".join(nodes),
        )
        (self.folder / "slurm.conf").write_text(settings)

    def states(self):
        """State of each node: {name: "idle", "mixed", "down" ...}."""
        lines = call("sinfo", "--noheader", "--Node", "--format=%N %T", check=False).splitlines()
        return dict(line.split() for line in lines)

    def jobs(self, states="PD,R"):
        """Jobs in some of the states, oldest first: {number: node, or "" for one that waits}."""
        out = call("squeue", "--noheader", f"--states={states}", "--sort=i", "--format=%A|%N")
        return dict(line.split("|") for line in out.splitlines())

    def node_down(self, name):
        call("scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=test")

    def node_up(self, name):
        # Refused if the node has come back by itself.
        call("scontrol", "update", f"NodeName={name}", "State=RESUME", check=False)

    def controller_down(self):
        """Stop slurmctld, as for maintenance; jobs on the nodes continue."""
        self._end(self.folder / "slurmctld.pid")

    def controller_up(self):
        start("slurmctld")
        wait_until(lambda: "UP" in call("scontrol", "ping", check=False), "slurmctld")

    def __exit__(self, *exc):
        with contextlib.suppress(RuntimeError, TimeoutError, OSError):
            jobs = self.jobs("PD,R,CG")
            if jobs:
                call("scancel", *jobs, check=False)
                wait_until(lambda: not self.jobs("R,CG"), "the end of the jobs", 10)
        for file in (*(f"{name}.pid" for name in self.names), "slurmctld.pid", "munge/pid"):
            self._end(self.folder / file)
        if self.before is None:
            os.environ.pop("SLURM_CONF", None)
        else:
            os.environ["SLURM_CONF"] = self.before
        if not any(exc):  # keep the logs if something went wrong
            shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, pid_file):
        """End the daemon that wrote this file, if it runs."""
        with contextlib.suppress(OSError, ValueError, TimeoutError):
            pid = int(pid_file.read_text())
            os.kill(pid, 15)
            wait_until(lambda: has_ended(pid), "the end of a daemon", 5)
