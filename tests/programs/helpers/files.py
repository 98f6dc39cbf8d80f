"""Uses files in every way a Python program does, and prints what it finds, for comparing."""

import fcntl
import json
import mmap
import os
import shutil
import subprocess
import sys
import tempfile

top = sys.argv[1]
here = os.path.join(top, "py")


def text(path):
    with open(os.path.join(here, path)) as file:
        return file.read()


def streams():
    os.makedirs(here + "/a/b")
    with open(here + "/f", "w") as file:
        file.write("hello\nworld\n")
    with open(here + "/f", "a") as file:
        file.write("more\n")
        print(file.tell())
    print(text("f").split())
    with open(here + "/bin", "wb+") as file:
        file.write(bytes(range(256)) * 1000)
        file.seek(-256, 2)
        print(file.read() == bytes(range(256)), file.tell())
        file.truncate(1000)
        file.seek(0, 2)
        print(file.tell())
    json.dump({"a": [1, 2]}, open(here + "/j", "w"))
    print(json.load(open(here + "/j")))


def trees():
    shutil.copytree(here, here + "2")
    shutil.copy2(here + "/f", here + "/g")
    print(sorted(os.listdir(here)), sorted(os.listdir(here + "2")))
    for path, folders, files in sorted(os.walk(here)):
        print(path[len(top):], sorted(folders), sorted(files))
    os.rename(here + "/g", here + "/h")
    os.replace(here + "/h", here + "/f")
    os.symlink("f", here + "/ln")
    print(os.path.realpath(here + "/ln")[len(top):], os.path.islink(here + "/ln"))
    try:
        os.rmdir(here)
    except OSError as error:
        print(error.errno)
    shutil.rmtree(here + "2")
    print(os.path.exists(here + "2"))


def attributes():
    os.chmod(here + "/f", 0o600)
    os.utime(here + "/f", (1, 2))
    found = os.stat(here + "/f")
    print(oct(found.st_mode), found.st_mtime, found.st_size, os.access(here + "/f", os.W_OK))
    if sys.argv[2] == "xattr":
        os.setxattr(here + "/f", "user.k", b"v")
        print(os.listxattr(here + "/f"), os.getxattr(here + "/f", "user.k"))


def without_names():
    with tempfile.NamedTemporaryFile(dir=here) as file:
        file.write(b"x" * 10)
        file.flush()
        print(os.path.getsize(file.name))
    with tempfile.TemporaryFile(dir=here) as file:
        file.write(b"y" * 10)
        file.seek(0)
        print(file.read())
    folder = os.open(here, os.O_RDONLY)
    fd = os.open("relative", os.O_CREAT | os.O_RDWR, dir_fd=folder)
    os.write(fd, b"1234")
    print(os.pread(fd, 2, 1), os.fstat(fd).st_size, sorted(os.listdir(folder)))
    os.close(fd)
    os.unlink("relative", dir_fd=folder)
    os.close(folder)


def children():
    print(subprocess.run(["cat", here + "/f"], capture_output=True).stdout)
    with open(here + "/out", "w") as out:
        subprocess.run(["echo", "from a child"], stdout=out)
        subprocess.run("echo again; pwd >/dev/null", shell=True, stdout=out)
    print(text("out"))
    with open(here + "/out") as source:
        print(subprocess.run(["wc", "-l"], stdin=source, capture_output=True).stdout)
    shared = open(here + "/shared", "w")
    print("parent", file=shared, flush=True)
    pid = os.fork()
    if pid == 0:
        print("child", file=shared, flush=True)
        open(here + "/forked", "w").write("child")
        os._exit(0)
    os.waitpid(pid, 0)
    print("parent again", file=shared, flush=True)
    print(text("shared"), text("forked"))


def mappings():
    with open(here + "/bin", "r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
        print(mapped[:4], len(mapped))
        mapped[0:3] = b"MMM"
        mapped.flush()
        mapped.close()
    print(open(here + "/bin", "rb").read(5))


def locks():
    other = """
import fcntl, sys
with open(sys.argv[1], "w") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        print("free")
    except OSError as error:
        print(error.errno)
"""
    with open(here + "/lock", "w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        fcntl.flock(file, fcntl.LOCK_EX)
        command = [sys.executable, "-c", other, here + "/lock"]
        print(subprocess.run(command, capture_output=True).stdout)
    print(subprocess.run(command, capture_output=True).stdout)


for part in (streams, trees, attributes, without_names, children, mappings, locks):
    print(part.__name__)
    part()
os.chdir(here)
print(open("f").read()[:5], os.getcwd()[len(top):])
