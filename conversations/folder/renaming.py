"""Renaming to where nothing is, in one step where the system can do it."""

import ctypes
import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress

_NO_REPLACE = 1


def rename_to_nothing(there: int, name: str, here: int, new_name: str) -> None:
    """Rename an entry of the folder ``there`` (descriptors). Raises FileExistsError."""
    if _rename_without_replacing(there, name, here, new_name):
        return
    if stat.S_ISDIR(os.lstat(name, dir_fd=there).st_mode):
        with suppress(FileNotFoundError):
            os.lstat(new_name, dir_fd=here)
            raise FileExistsError(errno.EEXIST, "")
        os.rename(name, new_name, src_dir_fd=there, dst_dir_fd=here)
    else:
        os.link(name, new_name, src_dir_fd=there, dst_dir_fd=here, follow_symlinks=False)
        os.unlink(name, dir_fd=there)


def _rename_without_replacing(there: int, name: str, here: int, new_name: str) -> bool:
    """False where the kernel or the file system does not know how."""
    call = _renameat2()
    if call is None:
        return False
    if call(there, os.fsencode(name), here, os.fsencode(new_name), _NO_REPLACE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
        return False
    if code == errno.EEXIST and _is_same_entry(there, name, here, new_name):
        os.rename(name, new_name, src_dir_fd=there, dst_dir_fd=here)
        return True
    raise OSError(code, os.strerror(code))


def _is_same_entry(there: int, name: str, here: int, new_name: str) -> bool:
    """Whether only the case of the name is to change, where case does not matter: one
    file, and not a second name of it."""
    if name == new_name or name.casefold() != new_name.casefold():
        return False
    one, other = os.lstat(name, dir_fd=there), os.lstat(new_name, dir_fd=here)
    return os.path.samestat(one, other) and new_name not in os.listdir(here)


def _renameat2() -> Callable[..., int] | None:
    try:
        return ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None
