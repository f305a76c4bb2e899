#!/bin/sh
# Publishing and reading with a shell alone: sh examples/shell.sh MOUNT
set -eu
cd "$1"

mkdir -p letters
echo 'a line is a message' >> letters/append
printf 'two\nmessages\n' | tee -a letters/append > /dev/null
echo 'with a key and a tag' >> letters/append@keys=LETTER-1,tags=short
cp /etc/hostname letters/0/append@frame=file # a whole file as one message

cat letters/keys/LETTER-1 && echo
cat letters.log | wc -l
for queue in letters/[0-9]; do
    echo "$queue: $(find "$queue" -type f -name '0*' | wc -l) messages"
done
