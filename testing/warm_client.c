// SPDX-License-Identifier: GPL-2.0-or-later
// The programs `hg` and `python` that ask a server of warm_hg.py: in C, as Python takes ten times as long to start, and without
// shared libraries, with which it would take a third longer.
//
// Beside this program is its name with ".settings": texts that end with a zero byte. The real program; the server's socket; the
// umask in octal; then a name, and its value or "\1" if it is not set, of each variable on which imports depend. A caller with
// another umask or other values, or without a standard stream, or arguments that are not for a warm Python, gets the real program.
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static void fail(const char *what) {
    perror(what);
    exit(255);
}

static void send_all(int server, const char *data, size_t size) {
    while (size) {
        ssize_t sent = send(server, data, size, MSG_NOSIGNAL);
        if (sent <= 0) fail("warm hg");
        data += sent;
        size -= sent;
    }
}

static void send_streams(int server, unsigned long size) {
    char head[8], rights[CMSG_SPACE(3 * sizeof(int))] = {0};
    int streams[3] = {0, 1, 2};
    for (int place = 0; place < 8; place++) head[place] = size >> (56 - 8 * place);
    struct iovec part = {head, sizeof head};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = rights, .msg_controllen = sizeof rights};
    struct cmsghdr *control = CMSG_FIRSTHDR(&message);
    *control = (struct cmsghdr){CMSG_LEN(sizeof streams), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(control), streams, sizeof streams);
    if (sendmsg(server, &message, MSG_NOSIGNAL) != sizeof head) fail("warm hg");
}

static int is_for_warm_python(int count, char **words) {
    return count > 1 && (words[1][0] != '-' || !strcmp(words[1], "-c") || !strcmp(words[1], "-"));
}

static int lacks_stream(void) {
    for (int stream = 0; stream < 3; stream++)
        if (fcntl(stream, F_GETFD) < 0) return 1;
    return 0;
}

int main(int count, char **words) {
    int is_other = lacks_stream(); // before a file takes its number
    char name[4096], folder[4096], number[16];
    ssize_t length = readlink("/proc/self/exe", name, sizeof name - 16);
    if (length < 0) fail("/proc/self/exe");
    strcpy(name + length, ".settings");
    struct stat about;
    int file = open(name, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &about)) fail(name);
    char *settings = calloc(1, about.st_size + 1);
    if (!settings || read(file, settings, about.st_size) != about.st_size) fail(name);
    close(file);
    char *program = settings, *address = program + strlen(program) + 1, *text = address + strlen(address) + 1;
    mode_t mask = umask(0);
    umask(mask);
    is_other |= mask != strtoul(text, NULL, 8);
    for (text += strlen(text) + 1; *text && !is_other; text += strlen(text) + 1) {
        char *value = getenv(text);
        text += strlen(text) + 1;
        is_other = strcmp(value ? value : "\1", text) != 0;
    }
    name[length] = 0;
    if (!strcmp(strrchr(name, '/'), "/python")) is_other |= !is_for_warm_python(count, words);
    words[0] = program;
    if (is_other) {
        execv(program, words);
        fail(program);
    }

    struct sockaddr_un where = {.sun_family = AF_UNIX};
    strncpy(where.sun_path, address, sizeof where.sun_path - 1);
    int server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (server < 0 || connect(server, (struct sockaddr *)&where, sizeof where)) fail(address);
    if (!getcwd(folder, sizeof folder)) fail("the folder");
    snprintf(number, sizeof number, "%d", count);

    size_t size = strlen(folder) + 1 + strlen(number) + 1;
    for (char **word = words; *word; word++) size += strlen(*word) + 1;
    for (char **word = environ; *word; word++) size += strlen(*word) + 1;
    char *request = malloc(size), *end = request;
    if (!request) fail("the request");
    end = stpcpy(stpcpy(end, folder) + 1, number) + 1;
    for (char **word = words; *word; word++) end = stpcpy(end, *word) + 1;
    for (char **word = environ; *word; word++) end = stpcpy(end, *word) + 1;
    send_streams(server, size - 1); // the last text has no zero byte
    send_all(server, request, size - 1);

    unsigned char answer[4];
    if (recv(server, answer, sizeof answer, MSG_WAITALL) != sizeof answer) {
        fprintf(stderr, "hg ended without an answer\n");
        return 1;
    }
    int status = answer[0] << 24 | answer[1] << 16 | answer[2] << 8 | answer[3];
    if (!WIFSIGNALED(status)) _exit(WEXITSTATUS(status));
    signal(WTERMSIG(status), SIG_DFL); // the caller may ignore it
    kill(getpid(), WTERMSIG(status));
    _exit(128 + WTERMSIG(status));
}
