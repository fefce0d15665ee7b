"""The git command lines that are offered, with the options that are allowed for each.

An option is allowed if it runs no program, writes only to the repository, the working tree and a
folder in it that the option names, and needs no input from a keyboard. These options are left out
on purpose, in every spelling:

- options that name a program: ``--exec``, ``--upload-pack``, ``--receive-pack``,
  ``--open-files-in-pager``, ``--config``, ``--template``
- options that run a program that a configuration names: ``--ext-diff``, ``--textconv``,
  ``--filters``, signing and verifying, ``--remerge-diff`` with its merge drivers, ``--trailer``,
  ``--alternate-refs``
- options that write or read any file: ``--output``, ``--no-index``, ``--contents``,
  ``--separate-git-dir``, ``--build-fake-ancestor``, ``--unsafe-paths``
- options that use the addresses in ``.gitmodules``: ``--recurse-submodules``
- interactive options: ``--patch`` of ``add`` and similar commands, and ``--interactive`` except of
  ``rebase``, whose editor is turned off
"""

from collections.abc import Mapping
from dataclasses import dataclass

from conversations.domain.tool_calls import CHANGES, READS

_DIFF = """
-p -u --patch -s --no-patch -U? --unified? --raw --patch-with-raw --patch-with-stat --numstat
--shortstat -X? --dirstat? --cumulative --dirstat-by-file? --check --summary --name-only
--name-status --stat? --stat-width= --stat-name-width= --stat-graph-width= --stat-count=
--compact-summary --binary -a --text --full-index --color? --ws-error-highlight= -z --abbrev?
--src-prefix= --dst-prefix= --no-prefix --default-prefix --line-prefix= --inter-hunk-context=
--output-indicator-new= --output-indicator-old= --output-indicator-context= -B? --break-rewrites?
-M? --find-renames? -D --irreversible-delete -C? --find-copies? --find-copies-harder --renames
--rename-empty --follow -l= --minimal -w --ignore-all-space -b --ignore-space-change
--ignore-space-at-eol --ignore-cr-at-eol --ignore-blank-lines -I= --ignore-matching-lines=
--indent-heuristic --patience --histogram --diff-algorithm= --anchored= --word-diff?
--word-diff-regex= --color-words? --color-moved? --color-moved-ws= --relative? -R --exit-code
--quiet --ignore-submodules? -S= -G= --pickaxe-all --pickaxe-regex --rotate-to= --skip-to=
--find-object= --diff-filter= -W --function-context --ita-invisible-in-index --ita-visible-in-index
--no-ext-diff --no-textconv
"""
_REVISIONS = """
-# -n= --max-count= --skip= --since= --after= --until= --before= --since-as-filter= --max-age=
--min-age= --author= --committer= --grep= --grep-reflog= --all-match --invert-grep -i
--regexp-ignore-case -E --extended-regexp -F --fixed-strings -P --perl-regexp --basic-regexp
--merges --min-parents= --max-parents= --first-parent --exclude-first-parent-only --not --all
--branches? --tags? --remotes? --glob= --exclude= --exclude-hidden= --reflog -g --walk-reflogs
--merge --boundary --cherry --cherry-pick --cherry-mark --left-only --right-only --left-right
--simplify-by-decoration --simplify-merges --full-history --dense --sparse --show-pulls
--ancestry-path? --date-order --author-date-order --topo-order --reverse --no-walk? --do-walk
--date= --relative-date --parents --children --graph --oneline --pretty? --format= --abbrev-commit
--encoding= --expand-tabs? --notes? --show-notes? -m -c --cc --dd --combined-all-paths -t --root
--count --log-size --remove-empty --ignore-missing --full-diff --show-linear-break? --bisect
"""
_LOG = f"""
{_DIFF} {_REVISIONS} -q --source --decorate? --clear-decorations --decorate-refs=
--decorate-refs-exclude= --mailmap --use-mailmap -L=
"""
_BLAME = """
--incremental -b --root --show-stats --progress --score-debug -f --show-name -n --show-number -p
--porcelain --line-porcelain -c -t -l -s -e --show-email -w --ignore-rev= --ignore-revs-file=
--color-lines --color-by-age --minimal -C? -M? -L= --abbrev? --date= --since= --first-parent
--reverse --encoding=
"""
_LISTS = """
--sort= --format= --color? --column? -i --ignore-case --omit-empty --points-at= --contains~
--no-contains~ --merged~ --no-merged~
"""
_PATHS_FILE = "--pathspec-from-file= --pathspec-file-nul"
_STRATEGY = "--strategy=ort|recursive|resolve|octopus|ours|subtree -X= --strategy-option="
_SHORT_STRATEGY = "-s=ort|recursive|resolve|octopus|ours|subtree"
_PROGRESS = "-q --quiet -v --verbose --progress"
_FETCH = f"""
{_PROGRESS} --all -a --append --atomic -f --force -m --multiple -t --tags -n -p --prune -P
--prune-tags --dry-run --depth= --shallow-since= --shallow-exclude= --deepen= --unshallow --refetch
--update-shallow --refmap= -4 --ipv4 -6 --ipv6 -j= --jobs= --no-recurse-submodules --auto-gc
--auto-maintenance --show-forced-updates --write-commit-graph -k --keep --negotiation-tip=
--set-upstream
"""
_STEPS = "--continue --abort --quit --skip"
_MERGE = f"""
-n --stat --summary --log? --squash --commit -e --edit --cleanup= --ff --ff-only --rerere-autoupdate
{_SHORT_STRATEGY} {_STRATEGY} -m= --message= -F= --file= --into-name= -v --verbose -q --quiet
--continue --abort --quit --allow-unrelated-histories --progress --autostash --overwrite-ignore
--signoff --verify
"""
_PICK = f"""
{_STEPS} --cleanup= -n --no-commit -e --edit -s --signoff -m= --mainline= --rerere-autoupdate
{_STRATEGY}
"""
_APPLY = """
--exclude= --include= --whitespace= --ignore-space-change --ignore-whitespace --reject --allow-empty
--directory= -C= -p=
"""
_SWITCH = """
--guess -q --quiet --progress -m --merge --conflict= -d --detach -f --force --orphan=
--overwrite-ignore --ignore-other-worktrees -t? --track?
"""
_STASH = f"""
-k --keep-index -S --staged -q --quiet -u --include-untracked -a --all -m= --message= {_PATHS_FILE}
"""
_NOTE = "-f --force --allow-empty -m= --message= -F= --file= -C= --reuse-message="


@dataclass(frozen=True, slots=True, kw_only=True)
class SubcommandRule:
    """The options and effects of a subcommand.

    An empty ``effect`` means that it depends on the options, see ``git_words``. ``writes_config``
    is true if the subcommand writes ``.git/config`` or makes a repository, ``has_url`` if its words
    may be addresses. If ``takes_words`` is False, only options are allowed.
    """

    options: str = ""
    effect: str = CHANGES
    needs_network: bool = False
    writes_config: bool = False
    has_url: bool = False
    takes_words: bool = True


_LOOKS = {
    "annotate": _BLAME,
    "blame": _BLAME,
    "cat-file": """-e -p -t -s --allow-unknown-type --use-mailmap --mailmap --batch?
        --batch-check? --batch-all-objects --buffer --unordered --follow-symlinks""",
    "check-ignore": "-q --quiet -v --verbose -z -n --non-matching --no-index",
    "cherry": "-v --verbose --abbrev?",
    "count-objects": "-v --verbose -H --human-readable",
    "describe": """--contains --debug --all --tags --long --first-parent --abbrev?
        --exact-match --candidates= --match= --exclude= --always --dirty? --broken?""",
    "diff": f"{_DIFF} --cached --staged --merge-base -0 -1 -2 -3 --base --ours --theirs -c --cc -q",
    "diff-tree": f"{_DIFF} {_REVISIONS} -r --no-commit-id -v --always --merge-base",
    "for-each-ref": f"""{_LISTS} -s --shell -p --perl --python --tcl --count= --exclude=""",
    "grep": """--cached --untracked --exclude-standard -v --invert-match -i --ignore-case -w
        --word-regexp -a --text -I -r --recursive --max-depth= -E --extended-regexp -G
        --basic-regexp -F --fixed-strings -P --perl-regexp -n --line-number --column -h -H
        --full-name -l --files-with-matches --name-only -L --files-without-match -z --null -o
        --only-matching -c --count --color? --break --heading -C= --context= -B=
        --before-context= -A= --after-context= --threads= -# -p --show-function -W
        --function-context -f= -e= --and --or --not -q --quiet --all-match -m= --max-count=
        --no-textconv""",
    "log": _LOG,
    "ls-files": """-z -t -v -f -c --cached -d --deleted -m --modified -o --others -i --ignored
        -s --stage -k --killed --directory --eol --empty-directory -u --unmerged --resolve-undo
        -x= --exclude= -X= --exclude-from= --exclude-per-directory= --exclude-standard
        --full-name --error-unmatch --with-tree= --abbrev? --debug --deduplicate --sparse
        --format=""",
    "ls-tree": """-d -r -t -z -l --long --name-only --name-status --object-only --full-name
        --full-tree --format= --abbrev?""",
    "merge-base": "-a --all --octopus --independent --is-ancestor --fork-point",
    "name-rev": "--name-only --tags --refs= --exclude= --all --undefined --always",
    "rev-list": f"""{_REVISIONS} --objects --objects-edge --unpacked --timestamp --header
        --in-commit-order --object-names --disk-usage? --abbrev? --quiet --use-bitmap-index""",
    "rev-parse": """--verify -q --quiet --short? --abbrev-ref? --symbolic --symbolic-full-name
        --all --branches? --tags? --remotes? --glob= --exclude= --show-toplevel --show-prefix
        --show-cdup --git-dir --absolute-git-dir --git-common-dir --git-path=
        --is-inside-work-tree --is-inside-git-dir --is-bare-repository --is-shallow-repository
        --show-superproject-working-tree --show-object-format? --since= --after= --until=
        --before= --revs-only --no-revs --flags --no-flags --not --default= --path-format=
        --show-ref-format""",
    "shortlog": f"""{_REVISIONS} -n --numbered -s --summary -e --email -c --committer -w?
        --group=""",
    "show": _LOG,
    "show-branch": """-a --all -r --remotes --color? --more? --list --no-name --current
        --sha1-name --merge-base --independent --topo-order --topics --sparse --date-order -g?
        --reflog?""",
    "show-ref": """--tags --heads --branches --verify --exists --head -d --dereference -s?
        --hash? --abbrev? -q --quiet""",
    "status": """-v --verbose -s --short -b --branch --show-stash --ahead-behind --porcelain?
        --long -z --null -u? --untracked-files? --ignored? --ignore-submodules? --column?
        --renames -M? --find-renames?""",
    "version": "--build-options",
    "whatchanged": _LOG,
    "notes list": "",
    "notes show": "",
    "reflog show": _LOG,
    "remote get-url": "--push --all",
    "stash list": _LOG,
    "stash show": f"{_DIFF} --include-untracked --only-untracked",
    "worktree list": "-v --verbose --porcelain -z --expire=",
}
_CHANGES = {
    "add": f"""-n --dry-run -v --verbose -f --force -u --update --renormalize -N
        --intent-to-add -A --all --ignore-removal --refresh --ignore-errors --ignore-missing
        --sparse --chmod= {_PATHS_FILE}""",
    "am": f"""{_APPLY} {_STEPS} -3 --3way -q --quiet -s --signoff -u --utf8 -k --keep
        --keep-non-patch -m --message-id --keep-cr -c --scissors --quoted-cr= -r --resolved
        --patch-format= --show-current-patch? --committer-date-is-author-date --ignore-date
        --rerere-autoupdate --empty=""",
    "apply": f"""{_APPLY} --no-add --stat --numstat --summary --check --index -N
        --intent-to-add --cached --apply -3 --3way -z -R --reverse --unidiff-zero
        --allow-overlap -v --verbose -q --quiet --inaccurate-eof --recount""",
    "cherry-pick": f"""{_PICK} -x --ff --allow-empty --allow-empty-message
        --keep-redundant-commits --empty=""",
    "clean": "-q --quiet -n --dry-run -f --force -d -e= --exclude= -x -X",
    "commit": f"""-q --quiet -v --verbose -F= --file= --author= --date= -m= --message= -c=
        --reedit-message= -C= --reuse-message= --fixup= --squash= --reset-author -s --signoff
        -t= --template= -e --edit --cleanup= --status -a --all -i --include -o --only -n
        --verify --dry-run --short --branch --ahead-behind --porcelain --long -z --null --amend
        --no-post-rewrite -u? --untracked-files? --allow-empty --allow-empty-message
        {_PATHS_FILE}""",
    "format-patch": f"""{_DIFF} {_REVISIONS} -n --numbered -N --no-numbered -s --signoff
        --stdout --cover-letter --numbered-files --suffix= --start-number= -v= --reroll-count=
        --filename-max-length= --rfc --cover-from-description= --subject-prefix= -o=
        --output-directory= -k --keep-subject -p --no-stat --no-binary --zero-commit
        --ignore-if-in-upstream --to= --cc= --from? --in-reply-to= --attach? --inline?
        --thread? --signature= --base= -q --progress --force-in-body-from""",
    "gc": "-q --quiet --prune? --cruft --aggressive --auto --force --keep-largest-pack",
    "merge": _MERGE,
    "mv": "-v --verbose -n --dry-run -f --force -k --sparse",
    "notes add": f"{_NOTE} -c= --reedit-message=",
    "notes append": f"{_NOTE} -c= --reedit-message=",
    "notes copy": "-f --force",
    "notes prune": "-n --dry-run -v --verbose",
    "notes remove": "--ignore-missing",
    "range-diff": f"{_DIFF} --creation-factor= --no-dual-color --left-only --right-only --notes?",
    "rebase": f"""{_STEPS} --onto= --keep-base --verify -q --quiet -v --verbose -n --stat
        --signoff --committer-date-is-author-date --reset-author-date --ignore-date -C=
        --ignore-whitespace --whitespace= -f --force-rebase --ff --show-current-patch --apply
        -m --merge -i --interactive --rerere-autoupdate --empty= --autosquash --update-refs
        --autostash -r? --rebase-merges? --fork-point {_SHORT_STRATEGY} {_STRATEGY} --root
        --reapply-cherry-picks""",
    "reflog delete": "--rewrite --updateref -n --dry-run --verbose",
    "reflog expire": """--all --expire= --expire-unreachable= --updateref --rewrite --stale-fix
        -n --dry-run --verbose --single-worktree""",
    "reset": f"""-q --quiet --refresh --mixed --soft --hard --merge --keep -N --intent-to-add
        {_PATHS_FILE}""",
    "restore": f"""-s= --source= -S --staged -W --worktree --ignore-unmerged --overlay -q
        --quiet --progress -m --merge --conflict= -2 --ours -3 --theirs
        --ignore-skip-worktree-bits {_PATHS_FILE}""",
    "revert": f"{_PICK} --reference",
    "rm": f"-n --dry-run -q --quiet --cached -f --force -r --ignore-unmatch --sparse {_PATHS_FILE}",
    "stash apply": "--index -q --quiet",
    "stash branch": "",
    "stash clear": "",
    "stash drop": "-q --quiet",
    "stash pop": "--index -q --quiet",
    "stash push": _STASH,
    "update-index": """-q --ignore-submodules --add --replace --remove --unmerged --refresh
        --really-refresh --cacheinfo= --chmod= --assume-unchanged --skip-worktree --info-only
        --force-remove -g --again --ignore-missing --verbose --index-version= --split-index
        --untracked-cache""",
    "worktree lock": "--reason=",
    "worktree move": "-f --force",
    "worktree prune": "-n --dry-run -v --verbose --expire=",
    "worktree remove": "-f --force",
    "worktree unlock": "",
}

# By ``subcommand`` or ``subcommand verb``.
FORMS: Mapping[str, SubcommandRule] = {
    **{name: SubcommandRule(options=options, effect=READS) for name, options in _LOOKS.items()},
    **{name: SubcommandRule(options=options) for name, options in _CHANGES.items()},
    "branch": SubcommandRule(
        options=f"""{_LISTS} -v --verbose -q --quiet -t? --track? -u= --set-upstream-to=
            --unset-upstream -r --remotes --abbrev? -a --all -d --delete -D -m --move -M -c
            --copy -C -l --list --show-current --create-reflog -f --force""",
        effect="",
    ),
    "checkout": SubcommandRule(
        options=f"""{_SWITCH} -b= -B= -l --overlay -2 --ours -3 --theirs
            --ignore-skip-worktree-bits {_PATHS_FILE}"""
    ),
    "clone": SubcommandRule(
        options=f"""{_PROGRESS} -n --no-checkout --bare --mirror -l --local --no-hardlinks -o=
            --origin= -b= --branch= --depth= --shallow-since= --shallow-exclude=
            --single-branch --tags -4 --ipv4 -6 --ipv6 -j= --jobs= --reject-shallow --sparse""",
        needs_network=True,
        writes_config=True,
        has_url=True,
    ),
    "fetch": SubcommandRule(options=_FETCH, needs_network=True, has_url=True),
    "init": SubcommandRule(
        options="--bare -q --quiet -b= --initial-branch= --object-format= --shared?",
        writes_config=True,
    ),
    "ls-remote": SubcommandRule(
        options="-q --quiet -t --tags -h --heads --branches --refs --get-url --sort= --exit-code "
        "--symref",
        needs_network=True,
        has_url=True,
    ),
    "notes": SubcommandRule(effect=READS, takes_words=False),
    "pull": SubcommandRule(
        options=f"""{_FETCH} {_MERGE} --signoff? -r? --rebase? -j? --jobs?""",
        needs_network=True,
        has_url=True,
    ),
    "push": SubcommandRule(
        options=f"""{_PROGRESS} --repo= --all --branches --mirror -d --delete --tags -n
            --dry-run --porcelain -f --force --force-with-lease? --force-if-includes --thin -u
            --set-upstream --prune --verify --follow-tags --atomic -o= --push-option= -4 --ipv4
            -6 --ipv6""",
        needs_network=True,
        has_url=True,
    ),
    "reflog": SubcommandRule(options=_LOG, effect=READS),
    "remote": SubcommandRule(options="-v --verbose", effect=READS, takes_words=False),
    "remote add": SubcommandRule(
        options="-t= --track= -m= --master= --tags --mirror?", writes_config=True, has_url=True
    ),
    "remote prune": SubcommandRule(options="-n --dry-run", needs_network=True),
    "remote remove": SubcommandRule(writes_config=True),
    "remote rename": SubcommandRule(options="--progress", writes_config=True),
    "remote rm": SubcommandRule(writes_config=True),
    "remote set-branches": SubcommandRule(options="--add", writes_config=True),
    "remote set-url": SubcommandRule(
        options="--push --add --delete", writes_config=True, has_url=True
    ),
    "remote show": SubcommandRule(options="-n", needs_network=True),
    "remote update": SubcommandRule(options="-p --prune", needs_network=True),
    "stash": SubcommandRule(options=_STASH, takes_words=False),
    "switch": SubcommandRule(
        options=f"{_SWITCH} -c= --create= -C= --force-create= --discard-changes"
    ),
    "tag": SubcommandRule(
        options=f"""{_LISTS} -l --list -n? -d --delete -a --annotate -m= --message= -F= --file=
            -e --edit --cleanup= -f --force --create-reflog""",
        effect="",
    ),
    "worktree add": SubcommandRule(
        options="""-f --force -b= -B= -d --detach --checkout --lock --reason= -q --quiet
            --track --guess-remote --orphan""",
        writes_config=True,
    ),
}
SUBCOMMANDS = {name.partition(" ")[0] for name in FORMS} | {"config"}

CONFIG_READS = """--get --get-all --get-regexp -l --list --local --includes -z --null
    --name-only --show-origin --show-scope -t= --type= --bool --int --bool-or-int --path
    --expiry-date --default= --all --value= --regexp --fixed-value --show-names"""
CONFIG_WRITES = """--local --add --unset --unset-all --replace-all --all --fixed-value -t=
    --type= --bool --int --bool-or-int --append --value="""
