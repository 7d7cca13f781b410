# SPDX-License-Identifier: GPL-2.0-or-later
"""For transcripts: `make-bundle.py FILE PART [PARAMETER=VALUE...]` makes a bundle of one empty part.

In a name like `OUTER/INNER` the outer part is interrupted by the inner one.
"""

import sys
from pathlib import Path

from mercurial import bundle2
from mercurial import ui as uimod

from pushlog.versions import initialize

initialize()
ui, file, name = uimod.ui.load(), Path(sys.argv[1]), sys.argv[2].encode()
outer, _, inner = name.rpartition(b"/")
bundler = bundle2.bundle20(ui)
part = bundler.newpart(inner)
for parameter in sys.argv[3:]:
    key, _, value = parameter.encode().partition(b"=")
    part.addparam(key, value)
made = b"".join(bundler.getchunks())
if outer:
    # Its parts without the bundle's magic, parameters and end.
    within = made[8:-4]
    bundler = bundle2.bundle20(ui)
    bundler.newpart(outer, data=b"content")
    made = b"".join(bundler.getchunks())
    # Before the end of the outer payload, and that of the bundle.
    made = made[:-8] + b"\xff\xff\xff\xff" + within + made[-8:]
file.write_bytes(made)
