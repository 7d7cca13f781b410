sysargv: list[bytes]
