/* SPDX-License-Identifier: Apache-2.0 */
/* What each folder of src/ is linked with to see what it uses (links.cmake). */
int main(void)
{
    return 0;
}
