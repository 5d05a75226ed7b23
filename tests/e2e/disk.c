/* What a server has really made durable, written down while it runs.
 *
 * Preloaded (LD_PRELOAD) into a Valkey or Redis. It appends a line to the file DISK_RECORD for
 * each call that decides what a power failure leaves of the files below the folder DISK_FOLDER:
 *
 *     sync INODE BYTES           fsync or fdatasync returned; BYTES was the size when it was called
 *     dir INODE NAME=INODE ...   a folder was fsynced, with these entries when that was called
 *     cut INODE BYTES            a file was truncated
 *     saved INODE                a rename replaced this file; it is kept as DISK_SAVED/INODE
 *     gone INODE                 a file is unlinked: its inode may name another file from now on
 *
 * The lines are in the page cache at once, so they survive a SIGKILL of the server. write() and
 * writev() need no wrapper: the file has its size when fsync is called. sync_file_range() has none
 * because it promises nothing about durability. The server renames, unlinks and truncates through
 * the symbols below (seen with strace and nm); it calls fdatasync from a background thread too.
 *
 * DISK_SLOW_MS makes every fsync so much slower, as on a busy disk, which widens the moments
 * between a rename and the fsync of its folder.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { LINE = 16384 };
static int record = -1;
static long slow_ms;
static const char *folder, *saved;

__attribute__((constructor)) static void start(void) {
  const char *path = getenv("DISK_RECORD"), *slow = getenv("DISK_SLOW_MS");
  folder = getenv("DISK_FOLDER");
  saved = getenv("DISK_SAVED");
  slow_ms = slow ? atol(slow) : 0;
  if (path && folder && saved)
    record = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
}

/* One line, with one write: threads and the child of a rewrite share the file. */
static void note(const char *format, ...) {
  char line[LINE];
  va_list words;
  va_start(words, format);
  int length = vsnprintf(line, sizeof line, format, words);
  va_end(words);
  if (length >= (int)sizeof line || syscall(SYS_write, record, line, length) != length) {
    static const char complaint[] = "disk.c: the record cannot be written\n";
    syscall(SYS_write, 2, complaint, sizeof complaint - 1);
    abort(); /* a record with a hole would blame the server for what it did not do */
  }
}

static int is_ours(int fd) {
  char link[64], path[4096];
  if (record < 0) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return strncmp(path, folder, strlen(folder)) == 0;
}

static void entries_of(int fd, char *text, size_t room) {
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  DIR *opened = opendir(path);
  if (!opened) abort();
  for (struct dirent *entry; (entry = readdir(opened));) {
    if (entry->d_name[0] == '.') continue;
    int more = snprintf(text, room, " %s=%lu", entry->d_name, (unsigned long)entry->d_ino);
    if (more >= (int)room) abort();
    text += more;
    room -= more;
  }
  closedir(opened);
}

static int synced(long call, int fd) {
  struct stat file;
  char entries[LINE - 64] = "";
  int ours = is_ours(fd) && fstat(fd, &file) == 0;
  if (ours && S_ISDIR(file.st_mode)) entries_of(fd, entries, sizeof entries);
  if (ours && slow_ms) {
    struct timespec pause = {slow_ms / 1000, slow_ms % 1000 * 1000000L};
    nanosleep(&pause, NULL);
  }
  int result = syscall(call, fd);
  int why = errno;
  if (ours && result == 0) {
    if (S_ISDIR(file.st_mode)) note("dir %lu%s\n", (unsigned long)file.st_ino, entries);
    else note("sync %lu %lld\n", (unsigned long)file.st_ino, (long long)file.st_size);
  }
  errno = why;
  return result;
}

int fsync(int fd) { return synced(SYS_fsync, fd); }
int fdatasync(int fd) { return synced(SYS_fdatasync, fd); }

int rename(const char *from, const char *to) {
  struct stat file;
  char kept[4096];
  if (record >= 0 && stat(to, &file) == 0 && S_ISREG(file.st_mode)) {
    snprintf(kept, sizeof kept, "%s/%lu", saved, (unsigned long)file.st_ino);
    if (link(to, kept) == 0) note("saved %lu\n", (unsigned long)file.st_ino);
  }
  return syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int unlink(const char *path) {
  struct stat file;
  if (record >= 0 && lstat(path, &file) == 0) note("gone %lu\n", (unsigned long)file.st_ino);
  return syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

static int cut(int result, int fd, long long length) {
  struct stat file;
  int why = errno;
  if (result == 0 && is_ours(fd) && fstat(fd, &file) == 0)
    note("cut %lu %lld\n", (unsigned long)file.st_ino, length);
  errno = why;
  return result;
}

int ftruncate(int fd, off_t length) { return cut(syscall(SYS_ftruncate, fd, length), fd, length); }
int ftruncate64(int fd, off64_t length) { return ftruncate(fd, length); }

int truncate(const char *path, off_t length) {
  int fd = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  int result = ftruncate(fd, length);
  int why = errno;
  close(fd);
  errno = why;
  return result;
}
int truncate64(const char *path, off64_t length) { return truncate(path, length); }

static int opened(const char *path, int flags, mode_t mode) {
  int fd = syscall(SYS_openat, AT_FDCWD, path, flags, mode);
  return fd >= 0 && flags & O_TRUNC ? cut(0, fd, 0), fd : fd;
}

#define MODE(flags, mode)                                  \
  mode_t mode = 0;                                         \
  if (flags & (O_CREAT | __O_TMPFILE)) {                   \
    va_list words;                                         \
    va_start(words, flags);                                \
    mode = va_arg(words, mode_t);                          \
    va_end(words);                                         \
  }

int open(const char *path, int flags, ...) {
  MODE(flags, mode);
  return opened(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
  MODE(flags, mode);
  return opened(path, flags, mode);
}
